"""Write the man pages of every `headrace` command, from what click knows of it, and the completions of three shells.

    python workshop/man_pages.py FOLDER      FOLDER/man1/headrace-serve.1, ..., FOLDER/completions/headrace.bash, ...

click-man does the same for groups whose commands are all loaded; ours load theirs when they are called. The pages are
troff with the macros of man(7).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from headrace import __version__
from headrace.commands.main import cli

SHELLS = ("bash", "zsh", "fish")
EXIT_STATUS = (
    "0 if it did what was asked, 1 if that failed, 2 if it was used wrongly: then one line on standard error names the "
    "option, the key of the configuration, or file and line."
)
ENVIRONMENT = (
    "Every key of the configuration can come from the environment: HEADRACE_ and the key in capitals, two underscores "
    "for a dot, as in HEADRACE_JOURNAL__RETENTION_BYTES. The environment comes after the file and before --set."
)
Page = tuple[str, str]  # name of the file, text


def pages(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[Page]:
    """The page of a command, and those of the commands within it."""
    context = click.Context(command, parent, name, **command.context_settings)
    within = subcommands(command, context)
    path = context.command_path
    yield f"{path.replace(' ', '-')}.1", "\n".join(page(context, within)) + "\n"
    for found in within:
        yield from pages(found, str(found.name), context)


def subcommands(command: click.Command, context: click.Context) -> list[click.Command]:
    """The commands of a group that are not hidden, by name; of others none."""
    if not isinstance(command, click.Group):
        return []
    found = [command.get_command(context, name) for name in command.list_commands(context)]
    return [one for one in found if one is not None and not one.hidden]


def page(context: click.Context, within: list[click.Command]) -> Iterator[str]:
    """The lines of one page."""
    path, command = context.command_path, context.command
    dashed = path.replace(" ", "-")
    yield f'.TH "{escaped(dashed.upper())}" 1 "" "headrace {__version__}" "headrace"'
    yield ".nh"  # names are not broken
    yield from (".SH NAME", rf"{escaped(dashed)} \- {escaped(summary(command))}")
    yield from (
        ".SH SYNOPSIS",
        rf".B {escaped(path)}",
        escaped(" ".join(command.collect_usage_pieces(context))),
    )
    yield from (".SH DESCRIPTION", *paragraphs(inspect.cleandoc(command.help or "")))
    yield ".SH OPTIONS"
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and isinstance(parameter, click.Option):
            yield from (".TP", rf"\fB{escaped(record[0])}\fR", starting(escaped(record[1])))
    if within:
        yield ".SH COMMANDS"
        for found in within:
            yield from (".TP", rf"\fB{escaped(f'{dashed}-{found.name}')}\fR(1)", escaped(summary(found)))
    if any(parameter.name == "config_file" for parameter in command.params) or context.parent is None:
        yield from (".SH ENVIRONMENT", escaped(ENVIRONMENT))
    yield from (".SH EXIT STATUS", escaped(EXIT_STATUS))
    if context.parent is not None:
        yield from (".SH SEE ALSO", rf"\fB{escaped(context.parent.command_path.replace(' ', '-'))}\fR(1)")


def summary(command: click.Command) -> str:
    """The first sentence of a command's help, without its full stop."""
    first = " ".join((command.help or "").split("\n\n")[0].split())
    return first.partition(". ")[0].removesuffix(".")


def paragraphs(text: str) -> Iterator[str]:
    """Help text: paragraphs that may be filled, and those behind click's `\\b`, whose lines stay."""
    for number, paragraph in enumerate(text.split("\n\n")):
        if number:
            yield ".PP"
        kept = paragraph.startswith("\b")
        lines = [starting(escaped(line)) for line in paragraph.removeprefix("\b").strip("\n").splitlines()]
        yield from (".nf", *lines, ".fi") if kept else lines


def escaped(text: str) -> str:
    """Text that troff takes literally, minus signs as they are typed."""
    return text.replace("\\", r"\e").replace("-", r"\-").replace("`", r"\(ga").replace("'", r"\(aq")


def starting(line: str) -> str:
    """A line that troff takes for no request."""
    return rf"\&{line}" if line.startswith((".", "'")) else line


def completion(shell: str) -> str:
    """The script that makes this shell ask `headrace` for what fits."""
    found = get_completion_class(shell)
    assert found is not None
    return str(found(cli, {}, "headrace", "_HEADRACE_COMPLETE").source()).strip() + "\n"


def main(folder: Path) -> None:
    manual, completions = folder / "man1", folder / "completions"
    manual.mkdir(parents=True, exist_ok=True)
    completions.mkdir(exist_ok=True)
    for name, text in pages(cli, "headrace"):
        (manual / name).write_text(text, encoding="utf-8")
    for shell in SHELLS:
        (completions / f"headrace.{shell}").write_text(completion(shell), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
