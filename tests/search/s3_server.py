"""A local S3 server for tests: moto, one request at a time, with or without support for conditional writes.

python -m tests.search.s3_server [ignore-conditions]: prints its address when it is ready, with a bucket "bucket".
"""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

BUCKET = "bucket"


@contextmanager
def s3_server(*options: str) -> Iterator[dict[str, str]]:
    """Run a server process; yield the environment variables for LanceDB and obstore."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.search.s3_server", *options]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as server:
        try:
            assert server.stdout
            address = server.stdout.readline().strip()
            assert address, "the server has not started"
            keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
            yield keys | {"AWS_ENDPOINT": address, "AWS_ALLOW_HTTP": "true"}
        finally:
            server.kill()


def main(options: list[str]) -> None:
    """Serve until the process is killed."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from moto.s3.models import s3_backends
    from werkzeug.serving import make_server

    moto = DomainDispatcherApplication(create_backend_app)
    s3_backends["123456789012"]["aws"].create_bucket(BUCKET, "us-east-1")
    # moto checks whether an object exists, then writes it: without a lock two threads could both create it.
    request_lock = threading.Lock()

    def serve(environ, start_response):
        if "ignore-conditions" in options:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        with request_lock:
            return moto(environ, start_response)

    server = make_server("127.0.0.1", 0, serve, threaded=True)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
