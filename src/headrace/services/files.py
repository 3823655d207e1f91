"""The directory of files: one password file and one ACL file, for all who come. Answers at once.

The files know no tenants: a user name in them is the whole name that CONNECT gives.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from headrace.core.ports.directory import Account, Directory, Inquiry, Rules, Secrets
from headrace.errors import ConfigError
from headrace.services.acl import Acl, read_acl
from headrace.services.passwords import PasswordFile, read_hashes

Found = TypeVar("Found")


class FileDirectory(Directory):
    """What both files say; "" stands for a file that there is not. Raises ConfigError, which names the key."""

    def __init__(self, password_file: str, acl_file: str, remember_s: float) -> None:
        super().__init__()
        self._password_file = password_file
        self._acl_file = acl_file
        self._remember_s = remember_s
        self._passwords: PasswordFile | None = None
        self._acl: Acl | None = None
        self._revision = 0
        self.reload()

    def find(self, inquiry: Inquiry) -> None:
        inquiry.answer(Account(self._revision, self._passwords, self._acl))

    def revision(self, tenant: str) -> int:
        return self._revision

    def rules(self, tenant: str) -> Rules | None:
        return self._acl

    def secrets(self, tenant: str) -> Secrets | None:
        return self._passwords

    def reload(self) -> None:
        passwords = None
        if self._password_file:
            hashes = _read("access.password_file", self._password_file, read_hashes)
            passwords = PasswordFile(hashes, self._remember_s)
            if self._passwords is not None:
                passwords.take_over(self._passwords)
        acl = _read("access.acl_file", self._acl_file, read_acl) if self._acl_file else None
        self._passwords, self._acl = passwords, acl
        self._revision += 1

    def close(self) -> None:
        """Do nothing: the files were read, and are not open."""


def _read(key: str, file: str, read: Callable[[Path], Found]) -> Found:
    """Read a file of access control. Raises ConfigError, which names key, file and, where there is one, the line."""
    try:
        return read(Path(file))
    except ConfigError as error:
        raise type(error)(f"{key}: {error}") from None
    except OSError as error:
        raise ConfigError(f"{key}: {file}: {error.strerror}") from None
