"""ResearchCopilot: a run platform for AI research agents that an operations team can trust."""

__version__ = "0.1.0"
