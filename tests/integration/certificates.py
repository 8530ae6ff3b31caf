"""Certificates for tests, made by openssl."""

import shutil
import subprocess

TIMEOUT_S = 240
OPENSSL = shutil.which("openssl")


def openssl(*arguments):
    subprocess.run([OPENSSL, *map(str, arguments)], check=True, capture_output=True, timeout=TIMEOUT_S)


def certify(folder, name):
    """Makes NAME.pem and NAME.key of 127.0.0.1, which is its own authority."""
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", f"/CN={name}",
            "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.pem")
    (folder / f"{name}.key").chmod(0o640)  # as orchestrators mount it
