"""systemd units of the Procfile's processes, for machines that have no other process manager."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import Final

from app.errors import ServicesError
from app.processes.procfile import SEARCHER, left_out, procfile
from config.settings import Settings

#: The target that starts and stops all processes.
TARGET: Final = "perennial.target"

# KillMode: SIGTERM to a whole group would kill a worker's pool processes in the middle of a page.
# TimeoutStopSec: a packer ends its pack. MemoryDenyWriteExecute is left out: cffi writes callbacks into such memory.
_SERVICE: Final = """\
[Unit]
Description=Perennial: {name}
Wants=network-online.target
After=network-online.target
PartOf={target}
StartLimitIntervalSec=0

[Service]
Type=exec
User=perennial
StateDirectory=perennial
StateDirectoryMode=0700
WorkingDirectory=%S/perennial
Environment=PERENNIAL_DATA_DIR=%S/perennial PYTHONUNBUFFERED=1 "PATH={programs}:/usr/bin:/bin"
EnvironmentFile=/etc/perennial/perennial.env
EnvironmentFile=-/etc/perennial/{name}.env
ExecStart={command}
Restart=always
RestartSec=2
KillMode=mixed
TimeoutStopSec=10min
LimitNOFILE=65536
UMask=0077
CapabilityBoundingSet=
LockPersonality=yes
NoNewPrivileges=yes
PrivateDevices=yes
PrivateTmp=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome=read-only
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectSystem=strict
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service

[Install]
WantedBy={target}
"""

_TARGET: Final = """\
[Unit]
Description=Perennial
Wants={wanted}

[Install]
WantedBy=multi-user.target
"""


def units(settings: Settings, processes: Collection[str] = ()) -> dict[str, str]:
    """Return the texts of the units by file name, of these processes or of all that the settings need.

    A searcher is an instance of a template: `REPLICAS` run where all processes do, and one where `processes` names it.
    Raises ServicesError for an unknown process.
    """
    commands = procfile()
    if unknown := set(processes) - commands.keys():
        raise ServicesError(
            f"{', '.join(sorted(unknown))}: no process of the Procfile, which are {', '.join(commands)}"
        )
    chosen = set(processes) or commands.keys() - left_out(settings)
    # `%` begins a specifier of systemd. It refuses paths with quotes or backslashes.
    programs = str(Path(sys.executable).parent).replace("%", "%%")
    texts, wanted = {}, []
    for name in (each for each in commands if each in chosen):
        program, _, options = commands[name].partition(" ")
        unit = f"perennial-{name}{'@' if name == SEARCHER else ''}.service"
        searchers = 1 if processes else settings.replicas
        numbers = [str(number + 1) for number in range(searchers)] if name == SEARCHER else [""]
        wanted += [unit.replace("@", f"@{number}") for number in numbers]
        texts[unit] = _SERVICE.format(
            name=name,
            target=TARGET,
            programs=programs,
            command=f'"{programs}/{program}" {options.replace("%", "%%")}',
        )
    return {TARGET: _TARGET.format(wanted=" ".join(wanted)), **texts}


def write_units(settings: Settings, directory: Path, processes: Collection[str] = ()) -> list[Path]:
    """Write the units into a directory, and return their files; raises ServicesError where that fails."""
    files = []
    for name, text in units(settings, processes).items():
        file = directory / name
        try:
            directory.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        except OSError as error:
            raise ServicesError(f"{file} not written: {error.strerror}") from error
        files.append(file)
    return files
