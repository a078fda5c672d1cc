"""Flower's own options: loopback only, behind a password, read-only."""

from __future__ import annotations

import sys

from config.checks import host_and_port
from config.settings import get_settings

_settings = get_settings()
try:
    _login = _settings.flower_login
except (OSError, ValueError) as error:
    sys.exit(f"Flower does not start: {error}")

address, port = host_and_port(_settings.flower_address)
basic_auth = [_login]
read_only = True
broker_api = _settings.broker_api.partition(";")[0] or None
natural_time = True
