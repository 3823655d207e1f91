"""Who may come in, as mosquitto.conf says it: for the whole broker, or for each listener (`per_listener_settings`)."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.mosquitto.converted import Converted
from headrace.mosquitto.lines import Line
from headrace.mosquitto.listeners import Listener

_ONE = "headrace has one for all listeners"


def convert(
    settings: dict[str, Line], listeners: Sequence[Listener], converted: Converted, *, local: bool
) -> None:
    """Set `allow_anonymous` and the files. `settings`: of the whole broker, `local`: nobody but this machine comes.

    Where they differ the first file counts for all, and nobody is anonymous unless everywhere. Raises InvalidLine."""
    _set_files(settings, listeners, converted)
    _set_anonymous(settings, listeners, converted, local=local)


def with_one_wall(listeners: list[Listener], per_listener: Line, converted: Converted) -> list[Listener]:
    """Return the listeners that all stand behind the first password file and the first ACL file of them: behind those of
    another one somebody would come in, or may do more, who may not now. Raises InvalidLine."""
    wanted = {option: _first(option, listeners) for option in ("password_file", "acl_file")}
    kept = []
    for one in listeners:
        others = [option for option, file in wanted.items() if not _fits(option, file, one)]
        why = f"{_ONE}, and {one.name} has not the {' and the '.join(others)} of the first one that has any"
        if not others or not converted.closes(per_listener, why, one.name):
            kept.append(one)
    return kept


def _first(option: str, listeners: Sequence[Listener]) -> str:
    return next((one.lines[option].value for one in listeners if option in one.lines), "")


def _fits(option: str, file: str, listener: Listener) -> bool:
    """Return whether a listener lets in, or allows, no more with this file than with what it has."""
    own = listener.lines[option].value if option in listener.lines else ""
    if own == file or (option == "acl_file" and not own):
        return True
    if option == "acl_file" or own:
        return False
    return _anonymous(listener) or listener.takes_names_from_certificates


def _anonymous(listener: Listener) -> bool:
    line = listener.lines.get("listener_allow_anonymous") or listener.lines.get("allow_anonymous")
    return line is not None and line.flag()


def _set_files(settings: dict[str, Line], listeners: Sequence[Listener], converted: Converted) -> None:
    for option in ("password_file", "acl_file"):
        given = [
            line for line in (settings.get(option), *(one.lines.get(option) for one in listeners)) if line
        ]
        if not given:
            continue
        converted.set(f"access.{option}", given[0].text())
        for line in given:
            if line.value != given[0].value:
                converted.remark(line, f"{_ONE}: {given[0].value} counts")
        without = [one.name for one in listeners if option not in one.lines and option not in settings]
        if without and option not in settings:
            converted.remark(given[0], f"{_ONE}: it counts for {', '.join(without)} too")


def _set_anonymous(
    settings: dict[str, Line], listeners: Sequence[Listener], converted: Converted, *, local: bool
) -> None:
    everywhere = settings["allow_anonymous"].flag() if "allow_anonymous" in settings else local
    said: list[tuple[Line, bool]] = []
    answers = []
    for one in listeners:
        line = one.lines.get("listener_allow_anonymous") or one.lines.get("allow_anonymous")
        answers.append(everywhere if line is None else line.flag())
        if line is not None:
            said.append((line, line.flag()))
    allowed = all(answers) if answers else everywhere
    converted.set("allow_anonymous", allowed)
    for line, wanted in said:
        if wanted != allowed:
            converted.remark(
                line, f"{_ONE}: allow_anonymous is {str(allowed).lower()}, since another one forbids it"
            )
