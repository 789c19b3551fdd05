"""Lua, one file a verb; each header names its KEYS, its ARGV and what it returns."""

from importlib.resources import files


def load(verb: str) -> str:
    """The text of one script."""
    return (files(__package__) / f"{verb}.lua").read_text(encoding="utf-8")
