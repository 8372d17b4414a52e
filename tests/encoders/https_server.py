"""An https server on the loopback interface that serves a file correctly and in several wrong ways."""

import datetime
import ipaddress
import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def write_certificate(folder):
    """Write a certificate for localhost and its private key to one file, and return the path of the file."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=1))
    builder = builder.not_valid_after(now + datetime.timedelta(days=1))
    certificate = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False).sign(key, hashes.SHA256())
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = folder / "certificate.pem"
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + secret)
    return path


@contextmanager
def serve(content, certificate):
    """Serve `content`; yield the address of the server and the list of requested paths.

    /file is correct, /broken ends halfway on the first request, /endless has no length, /elsewhere redirects to another
    host name, /insecure redirects to http, /loop redirects to itself, and every other path is missing.
    """
    requested = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            requested.append(self.path)
            port = server.server_port
            targets = {
                "/elsewhere": f"https://127.0.0.1:{port}/file",
                "/insecure": f"http://127.0.0.1:{port}/file",
                "/loop": "/loop",
            }
            if self.path in targets:
                self.send_response(302)
                self.send_header("Location", targets[self.path])
                self.send_header("Content-Length", "0")
                self.end_headers()
            elif self.path in {"/file", "/broken", "/endless"}:
                self.send_response(200)
                if self.path != "/endless":
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                is_broken = self.path == "/broken" and requested.count("/broken") == 1
                self.wfile.write(content[: len(content) // 2] if is_broken else content)
                self.close_connection = True
            else:
                self.send_error(404)

        def log_message(self, format, *args):  # noqa: A002 - the name in the standard library
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"https://localhost:{server.server_port}", requested
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
