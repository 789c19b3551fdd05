"""What a run executes: the contract for agents, the registry, and the agents that come along.

An agent never touches a run's status: it returns a result or raises; its worker does the rest.
"""
