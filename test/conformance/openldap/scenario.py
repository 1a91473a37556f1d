"""Logins that an OpenLDAP server checks, over AMQP 0.9.1, MQTT and the HTTP API."""

import base64
import concurrent.futures
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pika
from pika.exceptions import ChannelClosedByBroker, ProbableAccessDeniedError, ProbableAuthenticationError

from checks import Checks, until

checks = Checks("openldap")
HERE = pathlib.Path(__file__).parent
WORK = pathlib.Path(os.environ["WORK"])
BASE = "dc=example,dc=com"
PEOPLE = f"ou=people,{BASE}"
GROUPS = f"ou=groups,{BASE}"
SPECIAL = '*()\\,+"'
PORT, TLS_PORT, SECURE_PORT = 3890, 6360, 3891

PATTERN = ["auth_ldap.servers.1=127.0.0.1", f"auth_ldap.port={PORT}", f"auth_ldap.user_dn_pattern=cn=${{username}},{PEOPLE}"]
LOOKUP = [
    "auth_ldap.servers.1=127.0.0.1",
    f"auth_ldap.port={PORT}",
    "auth_ldap.dn_lookup_attribute=uid",
    f"auth_ldap.dn_lookup_base={PEOPLE}",
]
ACCOUNT = [f"auth_ldap.dn_lookup_bind.user_dn=cn=service,{BASE}", "auth_ldap.dn_lookup_bind.password=service password"]
GROUP_SETTINGS = [
    "auth_backends.1=ldap",
    f"auth_ldap.groups.ops.dn=cn=ops,{GROUPS}",
    "auth_ldap.groups.ops.tags=monitoring, management",
    f"auth_ldap.groups.apps.dn=cn=apps,{GROUPS}",
    "auth_ldap.groups.apps.scopes=configure:%2F/app* write:%2F/app* read:%2F/app* "
    "write:%2F/amq.topic read:%2F/amq.topic write:%2F/amq.topic/app.* read:%2F/amq.topic/app.* "
    "configure:%2F/mqtt-* write:%2F/mqtt-* read:%2F/mqtt-*",
]
STORED = ["auth_backends.1.authn=ldap", "auth_backends.1.authz=internal", "auth_backends.2=internal"]


def run(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout


def certificates():
    """An authority, a certificate for 127.0.0.1, and an authority that did not sign it."""
    for name in ("ca", "other"):
        run(
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-noenc", "-days", "2", "-subj", f"/CN={name}"),
            *("-keyout", WORK / f"{name}.key", "-out", WORK / f"{name}.pem"),
        )
    key, request, certificate = (WORK / f"ldap.{end}" for end in ("key", "csr", "pem"))
    run("openssl", "req", "-newkey", "rsa:2048", "-noenc", "-subj", "/CN=ldap", "-keyout", key, "-out", request)
    (WORK / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    run(
        *("openssl", "x509", "-req", "-in", request, "-CA", WORK / "ca.pem", "-CAkey", WORK / "ca.key"),
        *("-CAcreateserial", "-days", "2", "-extfile", WORK / "names", "-out", certificate),
    )


def configure(name, *lines):
    """The configuration of a server with the data of all servers."""
    schemas = ("core", "cosine", "inetorgperson")
    text = [f"include /etc/ldap/schema/{schema}.schema" for schema in schemas]
    text += ["modulepath /usr/lib/ldap", "moduleload back_mdb"]
    # Such a bind succeeds with any name and no password.
    text += ["allow bind_anon_dn"]
    text += [f"TLSCACertificateFile {WORK}/ca.pem", f"TLSCertificateFile {WORK}/ldap.pem"]
    text += [f"TLSCertificateKeyFile {WORK}/ldap.key", *lines]
    text += ["database mdb", f'suffix "{BASE}"', f"directory {WORK}/directory"]
    text += ["access to attrs=userPassword by anonymous auth by * none"]
    text += [f'access to dn.subtree="{GROUPS}" by users read by * none', "access to * by * read"]
    path = WORK / f"{name}.conf"
    path.write_text("\n".join(text) + "\n")
    return path


class Slapd:
    """A running server."""

    def __init__(self, name, urls, *lines):
        self.name, self.urls, self.ports = name, urls, [int(url.rsplit(":", 1)[1]) for url in urls]
        self.configuration = configure(name, *lines)

    def start(self):
        log = (WORK / f"{self.name}.log").open("a")
        command = ["slapd", "-d", "0", "-h", " ".join(self.urls), "-f", self.configuration]
        self.process = subprocess.Popen(command, stdout=log, stderr=log)
        for port in self.ports:
            until(lambda: reaches(port), f"slapd at {port}")

    def stop(self):
        self.process.terminate()
        self.process.wait(30)


def reaches(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
        return True
    return False


@contextlib.contextmanager
def node(name, *settings):
    """A node with these settings. Yields a function that returns its log."""
    options = [option for setting in settings for option in ("--set", setting)]
    options += ["--set", "mqtt.listeners.tcp.default=127.0.0.1:1883"]
    subprocess.run([os.environ["NODE"], "start", name, *options], check=True)
    try:
        yield (WORK / "nodes" / name / "log").read_text
    finally:
        subprocess.run([os.environ["NODE"], "stop", name], check=True)


def connect(user, password):
    credentials = pika.PlainCredentials(user, password)
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", 5672, credentials=credentials))


def declares(user, password, queue):
    """Logs in and declares a queue."""
    connection = connect(user, password)
    try:
        connection.channel().queue_declare(queue, durable=True)
    finally:
        if connection.is_open:
            connection.close()


def refused(user, password, error=ProbableAuthenticationError):
    """A login fails."""
    try:
        connect(user, password).close()
    except error:
        return
    raise AssertionError(f"{user!r} may log in with {password!r}")


def api(method, path, user, password, body=None):
    """The status and the document of a request to the HTTP API."""
    token = base64.b64encode(f"{user}:{password}".encode()).decode()
    headers = {"Authorization": f"Basic {token}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:15672/api/{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            text = response.read()
            return response.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        return error.code, None


def publishes(user, password, topic):
    """Whether an MQTT client may log in and publish."""
    client = ["mosquitto_pub", "-h", "127.0.0.1", "-V", "mqttv5", "-q", "1", "-t", topic, "-m", "text", "-u", user]
    ended = subprocess.run([*client, "-P", password], capture_output=True, text=True, timeout=60)
    # A refused publish is only a warning of this client.
    return ended.returncode == 0 and "failed" not in ended.stderr + ended.stdout


def create_user(name):
    """A user of the cluster without a password, and with all permissions."""
    guest = ("guest", "guest")
    assert api("PUT", f"users/{name}", *guest, {"password_hash": "", "tags": "management"})[0] in (201, 204)
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    assert api("PUT", f"permissions/%2F/{name}", *guest, rights)[0] in (201, 204)


def logged(log, *parts):
    """A line of the log has all of these, and none has a password."""
    text = log()
    assert any(all(part in line for part in parts) for line in text.splitlines()), (parts, text[-4000:])
    assert "wrong password" not in text and "service password" not in text


@checks.check
def password_is_checked_and_permissions_are_stored():
    with node("stored", *STORED, *PATTERN) as log:
        create_user("alice")
        declares("alice", "secret", "any")
        refused("alice", "wrong password")
        logged(log, "login.failed", "127.0.0.1:3890", "the user name or the password is wrong")
        refused("nobody", "secret")
        # The server accepts this bind, as its client shows.
        run("ldapwhoami", "-x", "-H", f"ldap://127.0.0.1:{PORT}", "-D", f"cn=alice,{PEOPLE}", "-w", "")
        refused("alice", "")
        logged(log, "login refused", "gave an empty password")
        assert api("GET", "whoami", "alice", "secret")[1]["tags"] == ["management"]
        assert api("GET", "whoami", "alice", "")[0] == 401
        assert publishes("alice", "secret", "t") and not publishes("alice", "wrong password", "t")
        # No user of the cluster, which has the permissions.
        refused("bob", "secret", ProbableAccessDeniedError)
        # The second backend.
        declares("guest", "guest", "any")


@checks.check
def groups_have_tags_and_permissions():
    with node("groups", *GROUP_SETTINGS, *PATTERN) as log:
        declares("alice", "secret", "app-1")
        try:
            declares("alice", "secret", "other")
        except ChannelClosedByBroker as error:
            assert error.reply_code == 403 and "alice" in error.reply_text
        else:
            raise AssertionError("no scope permits this name")
        status, user = api("GET", "whoami", "alice", "secret")
        assert (status, sorted(user["tags"])) == (200, ["management", "monitoring"]), user
        assert api("GET", "nodes", "alice", "secret")[0] == 200
        assert api("GET", "users", "alice", "secret")[0] == 401
        assert publishes("alice", "secret", "app/t") and not publishes("alice", "secret", "other")
        refused("bob", "secret", ProbableAccessDeniedError)
        assert api("GET", "queues", "bob", "secret")[0] == 401
        refused("guest", "guest")
        logged(log, "login.failed", "guest", "the user name or the password is wrong")


@checks.check
def user_is_looked_up_anonymously():
    groups = ["auth_ldap.dn_lookup_bind=anon", f"auth_ldap.group_lookup_base={GROUPS}"]
    with node("anonymous", *GROUP_SETTINGS, *LOOKUP, *groups) as log:
        declares("adoe", "secret", "app-2")
        refused("adoe", "wrong password")
        refused("alice", "secret")
        logged(log, "no entry below", "uid")
        refused("*", "secret")
        declares(SPECIAL, "special", "app-3")


@checks.check
def user_is_looked_up_by_an_account():
    with node("account", *GROUP_SETTINGS, *LOOKUP, *ACCOUNT) as log:
        declares("adoe", "secret", "app-4")
        refused("adoe", "wrong password")
        logged(log, "login.failed", "the user name or the password is wrong")
    wrong = [ACCOUNT[0], "auth_ldap.dn_lookup_bind.password=wrong password"]
    with node("wrong-account", *GROUP_SETTINGS, *LOOKUP, *wrong) as log:
        refused("adoe", "secret")
        logged(log, "login.failed", "check `auth_ldap.dn_lookup_bind.user_dn`")


@checks.check
def user_is_looked_up_by_itself():
    bind = [f"auth_ldap.user_bind_pattern=cn=${{username}},{PEOPLE}"]
    settings = [setting.replace("=uid", "=cn") for setting in LOOKUP]
    with node("itself", *GROUP_SETTINGS, *settings, *bind):
        declares("alice", "secret", "app-5")
        refused("alice", "wrong password")


@checks.check
def special_characters_are_escaped():
    with node("special", *GROUP_SETTINGS, *PATTERN):
        declares(SPECIAL, "special", "app-6")
        assert publishes(SPECIAL, "special", "app/t")
        refused(f"alice,{PEOPLE}", "secret")
        refused("*", "special")


@checks.check
def groups_may_be_members_of_groups():
    staff = [f"auth_ldap.groups.staff.dn=cn=staff,{GROUPS}", "auth_ldap.groups.staff.tags=administrator"]
    with node("direct", *GROUP_SETTINGS, *PATTERN, *staff):
        assert api("GET", "users", "alice", "secret")[0] == 401
    with node("nested", *GROUP_SETTINGS, *PATTERN, *staff, f"auth_ldap.group_lookup_base={GROUPS}"):
        assert api("GET", "users", "alice", "secret")[0] == 200


@checks.check
def anonymous_group_lookup_needs_access():
    with node("other-bind", *GROUP_SETTINGS, *PATTERN, "auth_ldap.other_bind=anon"):
        refused("alice", "secret", ProbableAccessDeniedError)
    bind = [setting.replace("dn_lookup_bind", "other_bind") for setting in ACCOUNT]
    with node("other-account", *GROUP_SETTINGS, *PATTERN, *bind):
        declares("alice", "secret", "app-7")


@checks.check
def tls_needs_a_trusted_certificate():
    ca, other = (f"auth_ldap.ssl_options.cacertfile={WORK}/{name}.pem" for name in ("ca", "other"))
    secure, tls = f"auth_ldap.port={SECURE_PORT}", f"auth_ldap.port={TLS_PORT}"
    with node("plain", *GROUP_SETTINGS, *PATTERN, secure) as log:
        refused("alice", "secret")
        logged(log, "confidentialityRequired: set `auth_ldap.use_ssl` or `auth_ldap.use_starttls`")
    for name, mode, port in (("starttls", "auth_ldap.use_starttls", secure), ("ldaps", "auth_ldap.use_ssl", tls)):
        with node(name, *GROUP_SETTINGS, *PATTERN, port, f"{mode}=true", ca):
            declares("alice", "secret", "app-8")
            refused("alice", "wrong password")
        with node(f"{name}-other", *GROUP_SETTINGS, *PATTERN, port, f"{mode}=true", other) as log:
            refused("alice", "secret")
            logged(log, "ldap.server_unavailable", "check `auth_ldap.ssl_options.cacertfile`")


@checks.check
def next_backend_is_asked_while_the_server_is_down():
    with node("down", *STORED, *PATTERN) as log:
        create_user("alice")
        declares("alice", "secret", "any")
        plain.stop()
        refused("alice", "secret")
        logged(log, "ldap.server_unavailable", "127.0.0.1", "refused", "check `auth_ldap.servers`")
        logged(log, "login.failed", "no server can check the password", "internal: wrong user name or password")
        declares("guest", "guest", "any")
        plain.start()
        declares("alice", "secret", "any")
        logged(log, "ldap.server_available")
    servers = ["auth_ldap.servers.1=127.0.0.2", "auth_ldap.servers.2=127.0.0.1", "auth_ldap.allow_plaintext=true"]
    with node("two-servers", *STORED, *PATTERN[1:], *servers) as log:
        create_user("alice")
        declares("alice", "secret", "any")
        logged(log, "ldap.server_unavailable", "127.0.0.2")


@checks.check
def hanging_server_stops_no_other_client():
    with node("hanging", *STORED, *PATTERN, "auth_ldap.timeout=2000") as log:
        open_connection = connect("guest", "guest")
        channel = open_connection.channel()
        plain.process.send_signal(signal.SIGSTOP)
        with concurrent.futures.ThreadPoolExecutor() as threads:
            began = time.monotonic()
            login = threads.submit(refused, "alice", "secret")
            while not login.done():
                called = time.monotonic()
                channel.queue_declare("any", durable=True)
                assert time.monotonic() - called < 1, "the client waits for the server"
            login.result()
            assert 2 <= time.monotonic() - began < 10
        plain.process.send_signal(signal.SIGCONT)
        logged(log, "login.failed", "no answer within `auth_ldap.timeout`")
        open_connection.close()


@checks.check
def accepted_logins_are_cached():
    with node("cached", *GROUP_SETTINGS, *PATTERN, "auth_cache.cache_ttl=60000"):
        declares("alice", "secret", "app-9")
        plain.stop()
        declares("alice", "secret", "app-9")
        refused("alice", "wrong password")
        plain.start()


certificates()
(WORK / "directory").mkdir(exist_ok=True)
plain = Slapd("plain", [f"ldap://127.0.0.1:{PORT}", f"ldaps://127.0.0.1:{TLS_PORT}"])
encrypted = Slapd("encrypted", [f"ldap://127.0.0.1:{SECURE_PORT}"], "security simple_bind=64")
run("slapadd", "-f", plain.configuration, "-l", HERE / "directory.ldif")
plain.start()
encrypted.start()
try:
    checks.run()
finally:
    plain.stop()
    encrypted.stop()
