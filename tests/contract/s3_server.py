"""A real S3-compatible server for tests: moto's, on a port of its own."""

from __future__ import annotations

import logging
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs

BUCKET = "isoloss-tests"


@contextmanager
def serve_s3() -> Iterator[fs.S3FileSystem]:
    """Start a server with an empty bucket, point this process's environment to it, and yield its file system."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing-secret")
        address = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
        patch.setenv("AWS_ENDPOINT_URL", address)
        filesystem, _ = fs.FileSystem.from_uri(f"s3://{BUCKET}?region=us-east-1&allow_bucket_creation=true")
        urllib.request.urlopen(urllib.request.Request(f"{address}/moto-api/reset", method="POST"))  # others' objects
        filesystem.create_dir(BUCKET)
        try:
            yield filesystem
        finally:
            server.stop()
