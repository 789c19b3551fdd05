"""What is wrong with something that was asked for: everything at once, each with its place.

A fault is found by whoever checks, whichever way the request came in: over HTTP it ends as a
problem document, of a Kubernetes object it stands in the object's status, in the same words.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from researchcopilot.core.errors import BadInput

NAMED = 3  # faults that a summary tells of


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong: `field` is a JSON path ($.input), a parameter or a header."""

    field: str
    message: str
    code: str = "invalid"


def of_input(error: BadInput) -> Fault:
    """What a rule says of itself, with the field as a body names it."""
    return Fault(f"$.{error.field}" if error.field else "$", error.message, error.code)


def common_code(faults: Sequence[Fault]) -> str:
    """The code that all of them share, else `invalid`."""
    codes = {fault.code for fault in faults}
    return codes.pop() if len(codes) == 1 else "invalid"


def summary(faults: Sequence[Fault], others: str = "") -> str:
    """The first of them as one sentence, and how many there are besides; `others` says where these
    stand."""
    text = "; ".join(f"{fault.field} {fault.message}" for fault in faults[:NAMED])
    if len(faults) > NAMED:
        text += f"; and {len(faults) - NAMED} more{others}"
    return text + "."
