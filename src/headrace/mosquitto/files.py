"""Password and ACL files of Mosquitto: the lines that we can use, and a remark for each that we cannot."""

from __future__ import annotations

import base64
import re
import tempfile
from pathlib import Path

from argon2 import extract_parameters
from argon2.exceptions import InvalidHashError

from headrace.services.acl import InvalidAcl, read_acl


def usable_passwords(file: Path) -> tuple[list[str], list[str]]:
    """Return the lines that we can use, and the remarks. Raises OSError, UnicodeDecodeError."""
    lines, remarks = [], []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        user, colon, hashed = line.strip().partition(":")
        if not user or user.startswith("#"):
            lines.append(line)
        elif colon and can_verify(hashed):
            lines.append(line.strip())
        else:
            remarks.append(
                f"{file}:{number}: user {user}: no $7$, $6$ or $argon2id$ hash, left out; "
                "give the user a password by headrace passwd"
            )
    return lines, remarks


def can_verify(hashed: str) -> bool:
    """Return whether a password can be compared with this hash."""
    try:
        if hashed.startswith("$argon2"):
            extract_parameters(hashed)
            return True
        _, kind, *rest = hashed.split("$")
        if kind == "7":
            iterations, *rest = rest
            if int(iterations) < 1:
                return False
        salt, digest = rest
        return kind in ("6", "7") and all(base64.b64decode(part, validate=True) for part in (salt, digest))
    except (ValueError, InvalidHashError):
        return False


def usable_acl(file: Path) -> tuple[list[str], list[str], list[tuple[int, str]]]:
    """Return the lines that we can use, the remarks, and number and text of those left out that are more than a grant:
    what they forbid, or whose the lines are that follow, is lost. Raises OSError, UnicodeDecodeError."""
    lines, remarks, closing = file.read_text(encoding="utf-8").split("\n"), [], []
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        copy = Path(folder) / "acl"
        while True:
            copy.write_text("\n".join(lines), encoding="utf-8")
            try:
                read_acl(copy)
            except InvalidAcl as error:
                place = re.search(r", line (\d+): (.*)", str(error))
                if place is None:
                    raise
                number = int(place[1])
                remarks.append(f"{file}:{number}: {place[2]}; left out")
                if not _is_grant(lines[number - 1]):
                    closing.append((number, lines[number - 1].strip()))
                lines[number - 1] = f"# {lines[number - 1]}"
            else:
                return lines, remarks, closing


def _is_grant(line: str) -> bool:
    """Return whether a line of an ACL file allows something, and says nothing else."""
    word, *rest = line.split()
    return word in ("topic", "pattern") and "deny" not in rest[:1]
