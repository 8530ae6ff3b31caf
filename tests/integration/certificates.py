"""Certificates for tests, made by openssl, and the metrics of their ends."""

import re
import shutil
import ssl
import subprocess

TIMEOUT_S = 240
OPENSSL = shutil.which("openssl")


def openssl(*arguments):
    return subprocess.run([OPENSSL, *map(str, arguments)], check=True, capture_output=True, text=True, timeout=TIMEOUT_S).stdout


def certify(folder, name, days=2):
    """Makes NAME.pem and NAME.key of 127.0.0.1, which is its own authority."""
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", str(days), "-subj", f"/CN={name}",
            "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.pem")
    (folder / f"{name}.key").chmod(0o640)  # as orchestrators mount it


def end_of(path):
    """Returns when the first certificate in a file ends, by openssl: Unix seconds."""
    return ssl.cert_time_to_seconds(openssl("x509", "-in", path, "-noout", "-enddate").strip().removeprefix("notAfter="))


def exported_ends(metrics):
    """Returns the ends in the text of /metrics, by the flag of the file."""
    return {flag: float(value) for flag, value in
            re.findall(r'^millrace_(?:http|shard)_certificate_end_time_seconds\{certificate="([\w-]+)"\} (\S+)$', metrics, re.MULTILINE)}
