"""How the demo looks: events, answers with their citations, counts; aligned, also with CJK."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from researchcopilot.dev.lives import Event
from researchcopilot.dev.tally import Counts
from researchcopilot.dev.terminal import Terminal, cut, pad, width, wrap

STATES = {
    "queued": ("yellow",),
    "running": ("blue",),
    "succeeded": ("green", "bold"),
    "failed": ("red", "bold"),
    "cancelled": ("magenta",),
    "kill -9": ("red", "bold"),
}


_HEADING = re.compile(r"^#+ ")
_ESCAPED = re.compile(r"\\(\W)")


def title(out: Terminal, number: int, text: str) -> None:
    out.line()
    out.line(out.tint(f"{number}  {text}", "bold"))


def event_line(out: Terminal, event: Event, worker: str) -> str:
    """`   +  56 ms  A  succeeded  worker 1  attempt 1   44 ms  …`."""
    ms = "accepted" if event.state == "queued" and event.ms == 0 else f"+{event.ms:,.0f} ms"
    took = "" if event.took_ms is None else f"{event.took_ms:,.0f} ms"
    attempt = "" if event.attempt is None else f"attempt {event.attempt}"
    parts = [
        out.tint(f"{ms:>12}", "dim"),
        out.tint(event.label, "bold"),
        out.tint(pad(event.state, 9), *STATES[event.state]),
        pad(worker, 9),
        pad(attempt, 9),
        f"{took:>9}",
    ]
    line = "   " + "  ".join(parts)
    return line.rstrip() + (f"  {out.tint(event.note, 'dim')}" if event.note else "")


def answer(out: Terminal, label: str, question: str, result: Mapping[str, Any]) -> None:
    """The answer, and under it what each number cites."""
    out.line()
    out.line(f"   {out.tint(label, 'bold')}  {out.tint(question, 'bold', 'cyan')}")
    text = str(result["answer"])
    for paragraph in text.splitlines():
        _paragraph(out, paragraph)
    out.line()
    for citation in result["citations"]:
        _citation(out, citation, quoted=str(citation["quote"]) in text)


def page(out: Terminal, markdown: str) -> None:
    """A page of Markdown, indented; headings bold, what is said in passing dim."""
    out.line()
    for text in markdown.splitlines():
        line = _ESCAPED.sub(r"\1", text)
        if _HEADING.match(text):
            _paragraph(out, f"**{_HEADING.sub('', line)}**")
        elif out.colour and re.fullmatch(r" *\*[^*].*\*", text):
            for part in wrap(line.replace("*", ""), out.columns - 8):
                out.line("      " + out.tint(part, "dim"))
        else:
            _paragraph(out, line)


def _paragraph(out: Terminal, text: str) -> None:
    """A line of Markdown: headings bold where there is a terminal, items with a hanging indent."""
    hanging = "  " if text.startswith("- ") else ""
    heading = text.startswith("**") and text.endswith("**")
    if heading and out.colour:
        text = text.strip("*")
    lines = wrap(text, out.columns - 8)
    for number, line in enumerate(lines):
        out.line("      " + (hanging if number else "") + out.tint(line, *["bold"] * heading))
    if not lines:
        out.line()


def _citation(out: Terminal, citation: Mapping[str, Any], *, quoted: bool) -> None:
    """Document, heading and span; the quote itself only if the answer does not have it."""
    number = f"{'[' + str(citation['n']) + ']':>4}"
    if citation["kind"] == "memory":
        run = f"an earlier run, {citation['run_id']}"
        out.line(f"      {out.tint(number, 'cyan')} {run}")
        return
    names = [citation["title"]]
    if citation["heading"] and citation["heading"] != citation["title"]:
        names.append(citation["heading"])
    span = f"{citation['name']} {citation['start']}–{citation['end']}"
    room = out.columns - width(number + span) - 10
    place = pad(cut(" › ".join(names), room), min(room, 56))
    out.line(f"      {out.tint(number, 'cyan')} {place}  {out.tint(span, 'dim')}")
    if not quoted:
        quote = cut(" ".join(str(citation["quote"]).split()), out.columns - 14)
        out.line(f"           {out.tint(f'“{quote}”', 'dim')}")


def counts(out: Terminal, found: Counts) -> None:
    """Runs by status, messages by role, and the depth of each list."""
    out.line(f"   {pad('runs', 10)}{_amounts(found.statuses)}")
    out.line(f"   {pad('messages', 10)}{_amounts(found.roles)}")
    heads = ("waiting", "processing", "delayed", "done")
    out.line(f"   {pad('queue', 10)}" + out.tint("".join(f"{head:>12}" for head in heads), "dim"))
    for name, depth in found.depths.items():
        numbers = (depth.waiting, depth.processing, depth.delayed, depth.done)
        out.line(f"   {pad('  ' + name, 10)}" + "".join(f"{number:>12,}" for number in numbers))


def _amounts(found: Mapping[str, int]) -> str:
    return " · ".join(f"{name} {number:,}" for name, number in found.items()) or "none"


def block(out: Terminal, text: str, styles: Sequence[str] = ()) -> None:
    for line in text.splitlines():
        out.line("   " + out.tint(line, *styles))
