"""Whether a cluster's ports can be reached from here, and whether its dashboard lets anyone in."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Iterable
from urllib.parse import urlsplit

from isoloss.checkup import Check

ANSWER_SECONDS = 5.0
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def check_dashboard(url: str) -> Check:
    """Say whether the dashboard at ``url`` answers, and whom."""
    if not url:
        return Check("dashboard", "warning", "Ray runs without its dashboard: no jobs, pages or metrics (ray[default])")
    host = urlsplit(url).hostname or ""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        direct.open(f"{url}/api/version", timeout=ANSWER_SECONDS).close()
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            return Check("dashboard", "ok", f"{url} asks for a token")
        return Check("dashboard", "warning", f"{url} answers with an error, {error.code}")
    except OSError as error:
        reason = getattr(error, "reason", error)
        return Check("dashboard", "warning", f"{url} does not answer ({reason}): jobs cannot be submitted from here")
    if host in LOOPBACK:
        return Check("dashboard", "ok", f"{url} answers on this machine only")
    return Check(
        "dashboard",
        "warning",
        f"{url} answers without a token, and whoever reaches it can run code on the cluster: start Ray with "
        "RAY_AUTH_MODE=token, or with --dashboard-host 127.0.0.1 and a tunnel",
    )


def check_ports(places: Iterable[tuple[str, str, int]]) -> Check:
    """Say which of the places (what listens there, host, port) take a connection from here."""
    places = list(places)
    closed = [f"{what} on {host}:{port}" for what, host, port in places if not _open(host, port)]
    if closed:
        return Check(
            "ports", "failed", f"cannot be reached from here: {', '.join(closed)}; open them between all nodes"
        )
    nodes = len({host for _, host, _ in places})
    return Check("ports", "ok", f"{len(places)} ports of {nodes} node{'s' * (nodes != 1)} can be reached from here")


def _open(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), ANSWER_SECONDS).close()
    except OSError:
        return False
    return True
