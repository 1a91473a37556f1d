"""The HTTP API's corners: requests in a row, with what each answered."""

import base64
import json
import time
import urllib.error
import urllib.parse
import urllib.request

from corners import group, table_of


class Web:
    def __init__(self, side):
        self.side, self.base = side, f"http://127.0.0.1:{side.http}"

    def ask(self, verb, path, body=None, user="guest", password=None, headers=(), raw=None):
        url = self.base + ("" if path.startswith("//") else "/api") + (path[1:] if path.startswith("//") else path)
        data = raw.encode() if raw is not None else json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(url, data=data, method=verb)
        if user is not None:
            request.add_header("Authorization", "Basic " + base64.b64encode(f"{user}:{password or user}".encode()).decode())
        if data is not None:
            request.add_header("Content-Type", "application/json")
        for key, value in dict(headers).items():
            request.add_header(key, value)

        class Still(urllib.request.HTTPRedirectHandler):
            def redirect_request(self, *_):
                return None

        try:
            with urllib.request.build_opener(Still).open(request, timeout=20) as answer:
                return answer.status, dict(answer.headers), answer.read()
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers), error.read()

    def said(self, verb, path, body=None, **how):
        status, headers, data = self.ask(verb, path, body, **how)
        text = data.decode("utf8", "replace")
        location = {key.lower(): value for key, value in headers.items()}.get("location")
        if "application/json" in headers.get("Content-Type", headers.get("content-type", "")) or text[:1] in "[{":
            try:
                text = json.dumps(json.loads(text), sort_keys=True)
            except ValueError:
                pass
        else:
            text = text[:80] if status >= 300 else f"({headers.get('Content-Type', headers.get('content-type'))})"
        return f"{status} {text}" + (f" -> {location}" if location else "")

    def json(self, path, **how):
        status, _, data = self.ask("GET", path, **how)
        return json.loads(data) if status == 200 else {"status": status}


def shape(what, depth=3):
    """The keys of a document and the types of their values."""
    if isinstance(what, dict):
        return {key: shape(inner, depth - 1) for key, inner in sorted(what.items())} if depth else "object"
    if isinstance(what, list):
        return ["..."] if not what else [shape(what[0], depth - 1)] if depth else "list"
    return {bool: "bool", int: "number", float: "number", str: "string", type(None): "null"}[type(what)]


@group
def http_requests(side):
    w = Web(side)
    log = lambda verb, path, body=None, **how: side.say(f"{verb} {path} {json.dumps(body) if body is not None else how.get('raw', '')} {how.get('user', '')}", w.said(verb, path, body, **how))
    perms = {"configure": ".*", "write": ".*", "read": ".*"}
    # users
    for name, tags in (("admin", "administrator"), ("mon", "monitoring"), ("mgmt", "management"), ("policy", "policymaker"), ("none", "")):
        log("PUT", f"/users/{name}", {"password": name, "tags": tags})
    for body in ({}, {"flim": "flam"}, {"tags": "management"}, {"password": "x"}, {"password_hash": "not_hash", "tags": ""}, {"password": "a", "password_hash": "b", "tags": ""}, {"password": "", "tags": ""}, {"password": "x", "tags": "a, b"}, {"password": "x", "tags": ["a", "b"]},
                 {"password_hash": "", "tags": ""}, {"password": "x", "tags": 5}, {"password": "x", "tags": None}, {"password": 5, "tags": ""}, {"password_hash": "IECV6PZI/Invh0DL187KFpkO5Jc=", "tags": "management"}, {"password_hash": "IECV6PZI/Invh0DL187KFpkO5Jc=", "hashing_algorithm": "rabbit_password_hashing_md5", "tags": "management"},
                 {"password_hash": "IECV6PZI/Invh0DL187KFpkO5Jc=", "hashing_algorithm": "foo", "tags": "management"}, {"administrator": "true", "password": "x"}, {"password": "x", "tags": "", "permissions": {"/": {"configure": "a", "write": "b", "read": "c"}}}, {"password": "x", "tags": "", "permissions": {"nothing": {"configure": "a", "write": "b", "read": "c"}}}):
        log("PUT", "/users/u1", body)
        side.say(f"  now {body}", {k: v for k, v in sorted(w.json("/users/u1").items()) if k != "password_hash" or "IECV" in v or not v})
        w.ask("DELETE", "/users/u1")
    log("PUT", "/users/u1", raw="not json")
    log("PUT", "/users/u1", raw="[1]")
    log("PUT", "/users/u1", raw="5")
    log("GET", "/users/nothing")
    log("DELETE", "/users/nothing")
    log("DELETE", "/users/guest", user="mgmt")
    log("PUT", "/users/a%2Fb", {"password": "x", "tags": ""})
    log("GET", "/users/a%2Fb?columns=name,tags,limits")
    log("DELETE", "/users/a%2Fb")
    log("PUT", "/users/", {"password": "x", "tags": ""})
    log("GET", "/users/without-permissions?columns=name,tags")
    log("POST", "/users/bulk-delete", {"users": ["nothing"]})
    log("POST", "/users/bulk-delete", {"users": "nothing"})
    log("POST", "/users/bulk-delete", {})
    for user in ("guest", "mgmt", "none", "nobody"):
        log("GET", "/whoami", user=user)
    log("GET", "/whoami", user=None)
    # vhosts
    for body in (None, {}, {"description": "d", "tags": "a,b"}, {"description": "d", "tags": ["a"]}, {"tracing": True}, {"tracing": "yes"}, {"default_queue_type": "quorum"}, {"default_queue_type": "foo"}, {"default_queue_type": ""}, {"default_queue_type": None}, {"protected_from_deletion": True}, {"tags": 5}, {"description": 5}):
        log("PUT", "/vhosts/v", body)
        doc = w.json("/vhosts/v")
        side.say("  now", {key: doc.get(key) for key in ("name", "description", "tags", "default_queue_type", "metadata", "tracing", "protected_from_deletion") if key != "metadata"})
    log("DELETE", "/vhosts/v/deletion/protection")
    log("POST", "/vhosts/v/deletion/protection")
    log("DELETE", "/vhosts/v")
    log("DELETE", "/vhosts/v/deletion/protection")
    log("DELETE", "/vhosts/v")
    log("DELETE", "/vhosts/v")
    log("GET", "/vhosts/v")
    log("GET", "/vhosts/v/permissions")
    log("GET", "/vhosts/v/topic-permissions")
    log("PUT", "/vhosts/v", {})
    log("PUT", "/vhosts/", {})
    log("GET", "/vhosts/v/permissions")
    log("POST", "/vhosts/v/start/nothing", {})
    # permissions
    for path in ("/permissions/wrong/guest", "/permissions/v/wrong", "/permissions/v/mgmt"):
        for body in (perms, {}, {"configure": "["}, {**perms, "read": "["}, {**perms, "write": 5}, {**perms, "read": None}):
            log("PUT", path, body)
        log("GET", path)
    log("DELETE", "/permissions/v/none")
    log("DELETE", "/permissions/nothing/none")
    for path in ("/topic-permissions/wrong/guest", "/topic-permissions/v/wrong", "/topic-permissions/v/mgmt"):
        for body in ({"exchange": "amq.topic", "write": ".*", "read": ".*"}, {}, {"exchange": "amq.topic", "write": "[", "read": ".*"}, {"exchange": "nothing", "write": "", "read": ""}, {"exchange": "", "write": "", "read": ""}):
            log("PUT", path, body)
        log("GET", path)
    log("DELETE", "/topic-permissions/v/mgmt/amq.topic")
    log("DELETE", "/topic-permissions/v/mgmt/amq.topic")
    log("DELETE", "/topic-permissions/v/mgmt")
    log("GET", "/users/mgmt/permissions")
    log("GET", "/users/mgmt/topic-permissions")
    log("GET", "/users/wrong/permissions")
    log("GET", "/users/wrong/topic-permissions")
    for user in ("admin", "mon", "mgmt", "policy", "none"):
        for path in ("/vhosts", "/vhosts/%2F", "/vhosts/v", "/vhosts/%2F/permissions", "/users", "/users/guest", "/users/" + user, "/users/guest/permissions", "/permissions", "/permissions/%2F/guest", "/topic-permissions", "/nodes", "/overview", "/exchanges/%2F", "/exchanges/v", "/exchanges/%2F/amq.direct", "/queues/%2F", "/queues/v",
                     "/queues/nothing", "/bindings/%2F", "/bindings/nothing", "/policies", "/policies/%2F", "/policies/v", "/policies/v/x", "/parameters", "/parameters/%2F", "/operator-policies", "/operator-policies/v", "/global-parameters", "/vhost-limits", "/vhost-limits/v", "/vhost-limits/%2F", "/user-limits", "/user-limits/guest", "/user-limits/" + user,
                     "/definitions", "/definitions/v", "/definitions/%2F", "/connections", "/channels", "/consumers", "/consumers/%2F", "/consumers/v", "/vhosts/v/connections", "/vhosts/%2F/connections", "/vhosts/v/channels", "/connections/username/guest", "/feature-flags", "/deprecated-features", "/deprecated-features/used", "/health/checks/alarms", "/cluster-name", "/auth/attempts/x", "/extensions", "/auth", "/aliveness-test/v", "/healthchecks/node", "/rebalance/queues", "/reset", "/version", "/queues/detailed"):
            status, _, data = w.ask("GET", path, user=user)
            side.say(f"GET {path} {user}", f"{status} {data.decode('utf8', 'replace') if status >= 300 else ''}"[:150])
    # exchanges
    for path, body in (("/exchanges/v/foo", {"type": "direct", "durable": "true"}), ("/exchanges/v/foo", {"type": "direct", "durable": True}), ("/exchanges/v/foo", {"type": "direct"}), ("/exchanges/v/foo", {"type": "direct", "durable": False}), ("/exchanges/v/foo", {"type": "fanout", "durable": True}), ("/exchanges/badvhost/bar", {"type": "direct"}),
                       ("/exchanges/v/bar", {"type": "bad_exchange_type"}), ("/exchanges/v/bar", {"type": "direct", "durable": "troo"}), ("/exchanges/v/bar", {}), ("/exchanges/v/bar2", {"durable": True, "auto_delete": "false", "internal": "true"}), ("/exchanges/v/amq.foo", {"type": "direct"}), ("/exchanges/v/amq.direct", {"type": "direct", "durable": True}), ("/exchanges/v/amq.direct", {"type": "fanout", "durable": True}),
                       ("/exchanges/v/amq.default", {"type": "direct"}), ("/exchanges/v/", {"type": "direct"}), ("/exchanges/v/ae", {"type": "direct", "arguments": {"alternate-exchange": "foo"}}), ("/exchanges/v/ae", {"type": "direct", "arguments": {"alternate-exchange": 5}}), ("/exchanges/v/ab", {"type": "direct", "arguments": []}), ("/exchanges/v/ac", {"type": "direct", "arguments": 5}), ("/exchanges/v/ad", {"type": 5})):
        log("PUT", path, body)
        log("GET", path + "?columns=name,vhost,type,durable,auto_delete,internal,arguments")
    log("DELETE", "/exchanges/v/foo")
    log("DELETE", "/exchanges/v/foo")
    log("DELETE", "/exchanges/v/amq.direct")
    log("DELETE", "/exchanges/v/amq.default")
    log("DELETE", "/exchanges/badvhost/x")
    # queues
    for path, body in (("/queues/v/foo", {"durable": True}), ("/queues/v/foo", {"durable": True}), ("/queues/v/foo", {"durable": False}), ("/queues/v/foo", {}), ("/queues/v/bar", {}), ("/queues/v/bar3", {"durable": "troo"}), ("/queues/v/bar4", {"durable": "false", "auto_delete": "true"}), ("/queues/badvhost/x", {}), ("/queues/v/amq.foo", {}), ("/queues/v/", {}), ("/queues/v/q1", {"arguments": {"x-expires": 0}}),
                       ("/queues/v/q1", {"arguments": {"x-message-ttl": "5"}}), ("/queues/v/q1", {"arguments": {"x-queue-type": "foo"}}), ("/queues/v/q1", {"arguments": {"x-queue-type": "quorum"}, "durable": False}), ("/queues/v/q1", {"arguments": {"x-queue-type": "quorum"}}), ("/queues/v/q1", {"arguments": {"x-queue-type": "quorum"}, "exclusive": True}), ("/queues/v/q2", {"arguments": {"x-message-ttl": 1e3}}), ("/queues/v/q3", {"arguments": {"x-message-ttl": 1.5}}), ("/queues/v/q4", {"arguments": []}), ("/queues/v/q5", {"arguments": 5}), ("/queues/v/q6", {"arguments": {"a": [1, "b", {"c": None}], "d": True, "e": 1.5}}), ("/queues/v/q7", {"node": "nothing"}),
                       ("/queues/v/q8", {"exclusive": True}), ("/queues/v/q9", {"durable": None}), ("/queues/v/a%2Fb", {}), ("/queues/v/a b", {}) if False else ("/queues/v/a%20b", {})):
        log("PUT", path, body)
        doc = {} if path.endswith("/") else w.json(path)
        side.say("  now", {key: doc.get(key) for key in ("name", "durable", "auto_delete", "exclusive", "arguments", "type", "status")})
    log("PUT", "/queues/v/raw", raw="")
    log("PUT", "/queues/v/raw2", raw="nonsense")
    log("PUT", "/queues/v/raw3", raw="null")
    log("DELETE", "/queues/v/foo")
    log("DELETE", "/queues/v/foo")
    log("DELETE", "/queues/badvhost/foo")
    log("DELETE", "/queues/v/badqueue/contents")
    log("DELETE", "/queues/v/bar/contents")
    log("POST", "/queues/v/bar/actions", {"action": "sync"})
    log("POST", "/queues/v/bar/actions", {"action": "change_colour"})
    log("POST", "/queues/v/bar/actions", {})
    log("POST", "/queues/v/nothing/actions", {"action": "sync"})
    # bindings
    log("PUT", "/exchanges/v/x", {"type": "direct"})
    log("PUT", "/queues/v/q", {"durable": True})
    for path, body in (("/bindings/v/e/x/q/q", {"routing_key": "routing", "arguments": {}}), ("/bindings/v/e/x/q/q", {}), ("/bindings/v/e/x/q/q", {"routing_key": "routing", "arguments": {"foo": "bar"}}), ("/bindings/v/e/x/q/q", {"routing_key": "r/ü ~*#", "arguments": {}}), ("/bindings/v/e/x/q/q", {"routing_key": None, "arguments": {}}), ("/bindings/v/e/x/q/q", {"routing_key": 5}), ("/bindings/v/e/x/q/bad", {}),
                       ("/bindings/v/e/bad/q/q", {}), ("/bindings/bad/e/x/q/q", {}), ("/bindings/v/e/amq.direct/e/amq.fanout", {"routing_key": "routing", "arguments": []}), ("/bindings/v/e/amq.direct/e/bad", {}), ("/bindings/v/e/amq.default/q/q", {"routing_key": "z"}), ("/bindings/v/e/x/x/q", {}), ("/bindings/v/e/amq.headers/q/q", {"arguments": {"x-match": "all", "a": 1, "b": True, "c": [1], "d": {"e": "f"}}}), ("/bindings/v/e/amq.headers/q/q", {"arguments": {"x-match": "foo"}}), ("/bindings/v/e/x/q/q", {"arguments": 5})):
        log("POST", path, body)
    for path in ("/bindings/v/e/x/q/q", "/bindings/v/e/x/q/q/routing", "/bindings/v/e/x/q/q/~", "/bindings/v/e/x/q/q/rooting", "/bindings/v/e/x/q/bad", "/bindings/v/e/bad/q/q", "/queues/v/q/bindings", "/exchanges/v/x/bindings/source", "/exchanges/v/amq.fanout/bindings/destination", "/exchanges/v/x/bindings/foo", "/queues/v/bad/bindings", "/exchanges/v/bad/bindings/source", "/bindings/v/e/amq.default/q/q", "/bindings/v/e/amq.default/q/q/q",
                 "/bindings/v/e/amq.headers/q/q", "/bindings/v/e/amq.direct/e/amq.fanout", "/bindings/v", "/bindings/bad/x"):
        log("GET", path)
    log("DELETE", "/bindings/v/e/x/q/q/routing")
    log("DELETE", "/bindings/v/e/x/q/q/routing")
    log("DELETE", "/bindings/v/e/x/q/q/r%2F%C3%BC%20%7E*%23")
    log("DELETE", "/bindings/v/e/amq.default/q/q/q")
    log("DELETE", "/bindings/v/e/x/q/q")
    # messages
    message = lambda **given: {"routing_key": "q", "payload": "x", "payload_encoding": "string", "properties": {}, **given}
    for body in (message(), message(routing_key="nothing"), message(payload="YWJjZA==", payload_encoding="base64"), message(payload="flibble", payload_encoding="base64"), message(payload_encoding="base99"), message(payload=["no"]), message(payload=5), message(properties=[]), message(properties={"user_id": "foo"}), message(properties={"priority": "really high"}),
                 message(properties={"timestamp": "recently"}), message(properties={"expiration": 1234}), message(properties={"expiration": "x"}), message(properties={"foo": 1}), message(properties={"headers": {"a": 1, "b": [1, {"c": 2}], "d": None, "e": 1.5, "f": True}, "delivery_mode": 2, "content_type": "a", "message_id": "m", "app_id": "p", "type": "t", "reply_to": "r", "correlation_id": "c", "cluster_id": "k", "content_encoding": "e", "timestamp": 5, "priority": 3}),
                 message(properties={"headers": 5}), {"routing_key": "q"}, {"payload": "x", "properties": {}, "payload_encoding": "string"}, {"routing_key": "q", "payload": "x", "properties": {}}, {"routing_key": "q", "payload": "x", "payload_encoding": "string"}, {}, message(payload="ü"), message(properties={"headers": {"CC": ["q", "zz"], "BCC": ["q"]}})):
        log("POST", "/exchanges/v/amq.default/publish", body)
    log("POST", "/exchanges/v/nothing/publish", message())
    log("POST", "/exchanges/v/bar2/publish", message())
    log("POST", "/exchanges/bad/x/publish", message())
    log("POST", "/exchanges/v/amq.default/publish", message(), user="none")
    log("POST", "/exchanges/v/amq.default/publish", message(), user="mon")
    for body in ({"count": 2, "ackmode": "ack_requeue_true", "encoding": "auto"}, {"count": 1, "ackmode": "reject_requeue_true", "encoding": "base64"}, {"count": 1, "ackmode": "reject_requeue_false", "encoding": "auto", "truncate": 0}, {"count": 20, "ackmode": "ack_requeue_false", "encoding": "auto"}, {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}, {"count": 0, "ackmode": "ack_requeue_false", "encoding": "auto"},
                 {"count": -1, "ackmode": "ack_requeue_false", "encoding": "auto"}, {"count": "1", "ackmode": "ack_requeue_false", "encoding": "auto"}, {"count": 1, "ackmode": "foo", "encoding": "auto"}, {"count": 1, "ackmode": "ack_requeue_false", "encoding": "foo"}, {"count": 1, "requeue": True, "encoding": "auto"}, {"ackmode": "ack_requeue_false", "encoding": "auto"}, {"count": 1, "encoding": "auto"}, {"count": 1, "ackmode": "ack_requeue_false"}, {}):
        log("POST", "/queues/v/q/get", body)
    log("POST", "/queues/v/nothing/get", {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"})
    log("POST", "/queues/v/q/get", {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}, user="none")
    log("PUT", "/exchanges/v/iu", {"type": "direct"})
    log("POST", "/bindings/v/e/iu/q/q", {})
    log("POST", "/exchanges/v/amq.default/publish", message())
    time.sleep(0.3)
    log("DELETE", "/queues/v/q?if-empty=true")
    log("DELETE", "/exchanges/v/iu?if-unused=true")
    c = side.client(vhost="v") if w.ask("PUT", "/permissions/v/guest", perms)[0] < 300 else None
    c.must("basic.consume", queue="q", tag="x")
    log("DELETE", "/queues/v/q?if-unused=true")
    c.seen()
    c.must("queue.declare", queue="ex", exclusive=True)
    log("DELETE", "/queues/v/ex")
    log("DELETE", "/queues/v/ex/contents")
    log("POST", "/queues/v/ex/get", {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"})
    log("PUT", "/queues/v/ex", {"durable": False})
    # policies, parameters, limits
    for body in ({"pattern": ".*", "definition": {"max-length": 5}}, {"pattern": ".*", "definition": {"max-length": 5}, "priority": "3"}, {"pattern": ".*", "definition": {"max-length": 5}, "priority": 1.5}, {"pattern": ".*", "definition": {"max-length": 5}, "apply-to": "foo"}, {"pattern": ".*", "definition": {"max-length": 5}, "apply-to": "queues"}, {"pattern": "[", "definition": {"max-length": 5}}, {"pattern": ".*", "definition": {}}, {"pattern": ".*"}, {"definition": {"max-length": 5}}, {},
                 {"pattern": ".*", "definition": {"max-length": -1}}, {"pattern": ".*", "definition": {"max-length": "5"}}, {"pattern": ".*", "definition": {"foo": 5}}, {"pattern": ".*", "definition": {"ha-mode": "all"}}, {"pattern": ".*", "definition": {"expires": 0}}, {"pattern": ".*", "definition": {"message-ttl": -1}}, {"pattern": ".*", "definition": {"overflow": "foo"}}, {"pattern": ".*", "definition": {"dead-letter-exchange": 5}}, {"pattern": ".*", "definition": {"dead-letter-exchange": "a", "dead-letter-routing-key": 5}},
                 {"pattern": ".*", "definition": {"alternate-exchange": "a"}}, {"pattern": ".*", "definition": {"alternate-exchange": 5}}, {"pattern": ".*", "definition": {"queue-mode": "lazy"}}, {"pattern": ".*", "definition": {"queue-mode": "x"}}, {"pattern": ".*", "definition": {"queue-version": 1}}, {"pattern": ".*", "definition": {"queue-version": 3}}, {"pattern": ".*", "definition": {"delivery-limit": -1}}, {"pattern": ".*", "definition": {"delivery-limit": -2}}, {"pattern": ".*", "definition": {"delivery-limit": "x"}}, {"pattern": ".*", "definition": {"dead-letter-strategy": "x"}},
                 {"pattern": ".*", "definition": {"queue-leader-locator": "x"}}, {"pattern": ".*", "definition": {"queue-leader-locator": "balanced"}}, {"pattern": ".*", "definition": {"max-in-memory-length": 5}}, {"pattern": ".*", "definition": {"max-age": "1D"}}, {"pattern": ".*", "definition": {"max-age": "x"}}, {"pattern": ".*", "definition": {"consumer-timeout": 5}}, {"pattern": ".*", "definition": {"consumer-timeout": "x"}}, {"pattern": ".*", "definition": {"federation-upstream-set": "all"}}, {"pattern": ".*", "definition": {"stream-max-segment-size-bytes": 5}}, {"pattern": ".*", "definition": {"max-length": 5, "foo": 1}}, {"pattern": 5, "definition": {"max-length": 5}}, {"pattern": ".*", "definition": 5}, {"pattern": ".*", "definition": []},
                 {"pattern": ".*", "definition": {"target-group-size": 3}}, {"pattern": ".*", "definition": {"initial-cluster-size": 3}}, {"pattern": ".*", "definition": {"queue-master-locator": "min-masters"}}, {"pattern": ".*", "definition": {"max-priority": 5}}, {"pattern": ".*", "definition": {"max-length-bytes": 5}}, {"pattern": ".*", "definition": {"max-in-memory-bytes": 5}}):
        log("PUT", "/policies/v/p", body)
        log("PUT", "/operator-policies/v/o", body)
    log("GET", "/policies/v")
    log("GET", "/operator-policies/v")
    log("GET", "/policies/v/p")
    log("DELETE", "/policies/v/p")
    log("DELETE", "/policies/v/p")
    log("DELETE", "/operator-policies/v/o")
    log("DELETE", "/operator-policies/v/o")
    log("PUT", "/policies/bad/p", {"pattern": ".*", "definition": {"max-length": 5}})
    for user in ("mgmt", "policy", "mon"):
        w.ask("PUT", f"/permissions/v/{user}", perms)
        log("PUT", "/policies/v/p", {"pattern": ".*", "definition": {"max-length": 5}}, user=user)
        log("PUT", "/policies/%2F/p", {"pattern": ".*", "definition": {"max-length": 5}}, user=user)
        log("PUT", "/operator-policies/v/p", {"pattern": ".*", "definition": {"max-length": 5}}, user=user)
        log("GET", "/policies/v/p", user=user)
        log("DELETE", "/policies/v/p", user=user)
        log("PUT", "/vhost-limits/v/max-queues", {"value": 5}, user=user)
        log("PUT", "/user-limits/mgmt/max-channels", {"value": 5}, user=user)
        log("PUT", "/parameters/test/v/good", {"value": 5}, user=user)
        log("PUT", "/global-parameters/good", {"value": 5}, user=user)
    for path, body in (("/parameters/test/v/good", {"value": "ignore"}), ("/parameters/policy/v/good", {"value": {"pattern": "a", "definition": {"max-length": 1}}}), ("/parameters/operator_policy/v/good", {"value": {"pattern": "a", "definition": {"max-length": 1}}}), ("/parameters/vhost-limits/v/limits", {"value": {"max-queues": 50}}), ("/parameters/vhost-limits/v/limits", {"value": {"foo": 50}}), ("/parameters/vhost-limits/v/limits", {"value": {"max-queues": "x"}}), ("/parameters/vhost-limits/v/other", {"value": {"max-queues": 50}}), ("/parameters/test/bad/good", {"value": 1}), ("/parameters/test/v/good", {})):
        log("PUT", path, body)
        log("GET", path)
        log("DELETE", path)
    for path in ("/parameters", "/parameters/oops", "/parameters/vhost-limits", "/parameters/vhost-limits/v", "/parameters/vhost-limits/bad", "/parameters/vhost-limits/v/limits"):
        log("GET", path)
    for body in ({"value": {"a": "b"}}, {"value": 5}, {"value": [1]}, {}, {"value": None}):
        log("PUT", "/global-parameters/good", body)
        log("GET", "/global-parameters/good")
    log("DELETE", "/global-parameters/good")
    log("DELETE", "/global-parameters/good")
    log("GET", "/global-parameters/oops")
    for path in ("/vhost-limits/v/max-queues", "/vhost-limits/v/max-connections", "/vhost-limits/v/max-channels", "/vhost-limits/bad/max-queues", "/user-limits/mgmt/max-channels", "/user-limits/mgmt/max-connections", "/user-limits/mgmt/max-unknown", "/user-limits/bad/max-channels"):
        for body in ({"value": 5}, {"value": -1}, {"value": 0}, {"value": "5"}, {"value": 1.5}, {"value": None}, {}, {"value": -2}):
            log("PUT", path, body)
    for path in ("/vhost-limits", "/vhost-limits/v", "/vhost-limits/bad", "/user-limits", "/user-limits/mgmt", "/user-limits/bad"):
        log("GET", path)
    for path in ("/vhost-limits/v/max-queues", "/vhost-limits/v/max-queues", "/vhost-limits/v/foo", "/vhost-limits/bad/max-queues", "/user-limits/mgmt/max-channels", "/user-limits/mgmt/max-channels", "/user-limits/mgmt/foo", "/user-limits/bad/max-channels", "/vhost-limits/v/max-connections", "/user-limits/mgmt/max-connections"):
        log("DELETE", path)
    # names, wrong verbs, wrong paths
    for body in ({"name": "foo"}, {}, {"name": 5}, {"name": ""}):
        log("PUT", "/cluster-name", body)
    log("GET", "/cluster-name")
    for verb in ("POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"):
        for path in ("/overview", "/queues", "/queues/v", "/queues/v/q1", "/exchanges/v/x", "/bindings/v/e/x/q/q", "/vhosts", "/users", "/permissions", "/nodes", "/policies/v", "/definitions", "/whoami", "/nothing", "/connections", "/connections/x", "/health/checks/alarms", "/queues/v/q/get", "/exchanges/v/x/publish"):
            if verb == "DELETE" and path in ("/queues/v/q1", "/exchanges/v/x") or verb == "PUT" and path.count("/") > 1 or verb == "POST" and path == "/definitions":
                continue
            status, headers, data = w.ask(verb, path, {} if verb in ("POST", "PUT", "PATCH") else None)
            side.say(f"{verb} {path}", f"{status} {data.decode('utf8', 'replace')[:100]} allow={headers.get('allow', headers.get('Allow'))}")
    for path in ("/nothing", "/queues/v/q1/nothing", "/", "", "/index.html", "/connections/foo", "/channels/foo", "/connections/foo/channels", "/nodes/foo", "/nodes/foo/memory", "/consumers/bad", "/vhosts/bad/connections", "/vhosts/bad/channels", "/health/checks/nothing", "/health/checks/port-listener/bananas", "/health/checks/port-listener/1", "/health/checks/protocol-listener/amqp", "/health/checks/protocol-listener/amqp0.9.1", "/health/checks/protocol-listener/amqp0-9-1",
                 "/health/checks/protocol-listener/doe", "/health/checks/protocol-listener/amqp,doe", "/health/checks/certificate-expiration/1/weeks", "/health/checks/certificate-expiration/two/weeks", "/health/checks/certificate-expiration/2/week", "/health/checks/node-is-quorum-critical", "/health/checks/virtual-hosts", "/health/checks/local-alarms", "/health/checks/is-in-service", "/health/checks/ready-to-serve-clients", "/health/checks/below-node-connection-limit", "/health/checks/reached-target-cluster-size", "/health/checks/node-is-mirror-sync-critical", "/health/checks/metadata-store/initialized",
                 "/health/checks/metadata-store/initialized/with-data", "/health/checks/quorum-queues-without-elected-leaders/all-vhosts/", "/health/checks/quorum-queues-without-elected-leaders/vhost/%2F/", "/health/checks/quorum-queues-without-elected-leaders/vhost/v/pattern/%5Eother", "/healthchecks/node", "/healthchecks/node/foo", "/aliveness-test/%2F", "/aliveness-test/bad", "/auth", "/extensions", "/feature-flags/nothing"):
        log("GET", path)
    log("PUT", "/feature-flags/nothing/enable", {})
    log("GET", "//cli")
    log("GET", "//api")
    log("GET", "//doc/stats.html")
    log("GET", "/overview", user=None)
    log("GET", "/overview", user="guest", password="x")
    for path in ("/queues?page=1&page_size=2", "/queues?page=1000", "/queues?page=-1", "/queues?page=x", "/queues?page=1&page_size=x", "/queues?page=1&page_size=501", "/queues?page=0", "/queues?page_size=2", "/queues?page=1&page_size=0", "/queues?page=1&name=%5Bx&use_regex=true", "/queues/bad?page=1", "/exchanges/v?page=1&page_size=3&name=amq", "/exchanges/v?page=1&page_size=3&name=%5Ea&use_regex=true",
                 "/connections?page=1", "/channels?page=1&page_size=1", "/queues?lengths_age=60&lengths_incr=1&columns=name", "/queues?lengths_age=6000&lengths_incr=1", "/overview?lengths_age=6000&lengths_incr=1", "/exchanges?columns=name,vhost&sort=name&sort_reverse=true", "/exchanges/v?columns=name&sort=foo", "/exchanges?columns=nothing", "/exchanges/v/x?columns=name,arguments.a", "/vhosts?columns=name&sort=name&sort_reverse=true", "/vhosts?page=1", "/users?columns=name&sort=name", "/bindings/v?columns=source,destination,routing_key&sort=routing_key", "/permissions?columns=user,vhost&sort=user", "/queues?disable_stats=true&enable_queue_totals=true&columns=name,messages"):
        status, _, data = w.ask("GET", path)
        doc = json.loads(data) if data[:1] in (b"{", b"[") else data.decode()
        if isinstance(doc, dict) and "items" in doc:
            doc["items"] = [item.get("name") for item in doc["items"]]
        side.say(f"GET {path}", f"{status} {json.dumps(doc, sort_keys=True) if len(json.dumps(doc)) < 1500 else len(doc)}")
    # definitions
    for body in ({}, {"queues": [{"name": "dq", "vhost": "v", "durable": True, "auto_delete": False, "arguments": {}}]}, {"queues": [{"name": "dq", "vhost": "v", "durable": False, "auto_delete": False, "arguments": {}}]}, {"queues": [{"name": "dq2", "vhost": "bad", "durable": True, "auto_delete": False, "arguments": {}}]}, {"queues": [{"name": "dq3", "vhost": "v", "durable": True, "auto_delete": False, "arguments": {"x-expires": 0}}]}, {"queues": [{"name": "dq4", "vhost": "v"}]}, {"queues": [{"name": "amq.x", "vhost": "v", "durable": True, "auto_delete": False, "arguments": {}}]},
                 {"exchanges": [{"name": "dx", "vhost": "v", "type": "definitely not direct", "durable": True, "auto_delete": False, "arguments": {}}]}, {"exchanges": [{"name": "amq.y", "vhost": "v", "type": "direct", "durable": True, "auto_delete": False, "internal": False, "arguments": {}}]}, {"bindings": [{"source": "x", "vhost": "v", "destination": "q1", "destination_type": "queue", "routing_key": "z", "arguments": {}}]}, {"bindings": [{"source": "x", "vhost": "v", "destination": "nothing", "destination_type": "queue", "routing_key": "z", "arguments": {}}]}, {"users": [{"name": "du", "password_hash": "WAbU0ZIcvjTpxM3Q3SbJhEAM2tQ=", "tags": "management"}]},
                 {"users": [{"name": "du2", "password": "x", "tags": ["management"]}]}, {"users": [{"name": "du3", "tags": ""}]}, {"rabbit_version": "3.5.4", "users": [{"name": "du4", "password_hash": "WAbU0ZIcvjTpxM3Q3SbJhEAM2tQ=", "tags": "management"}]}, {"vhosts": [{"name": "dv", "metadata": {"description": "d", "tags": ["a"], "default_queue_type": "quorum"}}]}, {"vhosts": [{"name": "dv2", "description": "d", "tags": ["a"], "limits": []}]}, {"permissions": [{"user": "nothing", "vhost": "v", "configure": "", "write": "", "read": ""}]}, {"policies": [{"vhost": "v", "name": "dp", "pattern": "zz", "apply-to": "queues", "definition": {"max-length": 4}, "priority": 0}]}, {"policies": [{"vhost": "v", "name": "dp", "pattern": "zz", "apply-to": "queues", "definition": {"foo": 4}, "priority": 0}]},
                 {"parameters": [{"vhost": "v", "component": "vhost-limits", "name": "limits", "value": {"max-queues": 77}}]}, {"global_parameters": [{"name": "dg", "value": {"a": 1}}]}, {"topic_permissions": [{"user": "mgmt", "vhost": "v", "exchange": "amq.topic", "write": "a", "read": "b"}]}, {"foo": []}, {"queues": {}}, {"queues": 5}, []):
        log("POST", "/definitions", body)
    log("POST", "/definitions", raw="nonsense")
    log("POST", "/definitions/v", {"queues": [{"name": "dvq", "durable": True, "auto_delete": False, "arguments": {}}]})
    log("POST", "/definitions/bad", {"queues": []})
    log("POST", "/definitions", {}, user="mgmt")
    for path in ("/users/du", "/users/du2", "/users/du3", "/users/du4", "/vhosts/dv", "/vhosts/dv2"):
        doc = w.json(path)
        side.say(f"GET {path}", {key: doc.get(key) for key in ("name", "hashing_algorithm", "tags", "limits", "description", "default_queue_type", "status")})
    log("GET", "/queues/v?columns=name,durable,auto_delete,exclusive,arguments,type,policy,operator_policy,effective_policy_definition")
    log("GET", "/definitions/v")
    defs = w.json("/definitions")
    side.say("definitions keys", sorted(defs))
    side.say("definitions users", sorted([(user["name"], sorted(user), user["tags"], user["limits"]) for user in defs["users"]], key=str))
    side.say("definitions vhosts", defs["vhosts"])
    for name in ("u1", "admin", "mon", "mgmt", "policy", "none", "du", "du2", "du3", "du4"):
        w.ask("DELETE", f"/users/{name}")
    for name in ("v", "dv", "dv2"):
        log("DELETE", f"/vhosts/{name}")
    side.say("its connection", c.seen(1))


@group
def http_shapes(side):
    """The keys and types of documents while something goes on."""
    w = Web(side)
    c = side.client()
    for kind in ("classic", "quorum"):
        c.must("queue.declare", queue="s" + kind, durable=True, arguments=table_of(kind))
    c.must("queue.declare", queue="sexcl", exclusive=True)
    c.must("queue.bind", queue="sclassic", exchange="amq.direct", routing_key="a", arguments=[("x", ("I", 1))])
    c.must("basic.qos", count=5)
    c.must("basic.consume", queue="sclassic", tag="cc")
    c.must("basic.consume", queue="squorum", tag="cq")
    c.must("confirm.select", 2)
    c.must("queue.declare", 2, queue="srest")
    c.must("basic.qos", 3, count=7, **{"global": True})
    for _ in range(3):
        for queue in ("sclassic", "squorum", "srest"):
            c.publish(queue, b"xx", 2)
        time.sleep(1.2)
        c.seen(0.1)
    time.sleep(5)
    for path in ("/overview", "/nodes", "/queues/%2F/sclassic", "/queues/%2F/squorum", "/queues/%2F/sexcl", "/queues/%2F/srest", "/connections", "/channels", "/consumers", "/exchanges/%2F/amq.direct", "/exchanges/%2F/amq.default", "/exchanges/%2F", "/vhosts/%2F", "/bindings/%2F/e/amq.direct/q/sclassic", "/queues/%2F/sclassic/bindings", "/users/guest", "/permissions/%2F/guest", "/feature-flags", "/deprecated-features", "/definitions", "/queues/quorum/%2F/squorum/status", "/queues/%2F", "/queues?page=1", "/health/checks/alarms", "/auth", "/extensions"):
        doc = w.json(path)
        flat = []

        def walk(prefix, what):
            if isinstance(what, dict):
                for key, inner in what.items():
                    walk(f"{prefix}.{key}", inner)
            elif isinstance(what, list):
                flat.append(f"{prefix}[]")
                if what:
                    walk(f"{prefix}[]", what[0])
            else:
                flat.append(f"{prefix}: {shape(what)}")

        walk("", doc)
        for one in sorted(set(flat)):
            side.say(f"{path} {one}", "there")
    connection = w.json("/connections")[0]["name"]
    name = urllib.parse.quote(connection)
    for path in (f"/connections/{name}", f"/connections/{name}/channels", f"/channels/{name}%20(1)", f"/channels/{name}%20(3)"):
        doc = w.json(path)
        doc = doc[0] if isinstance(doc, list) else doc
        for key, value in doc.items():
            side.say(f"{path.split('/')[1]} {path[-4:] if path.endswith(')') else path.split('/')[-1][:8]} {key}: {json.dumps(shape(value))}", "there")
    for number in (1, 2, 3):
        doc = w.json(f"/channels/{name}%20({number})")
        side.say(f"channel {number}", {key: doc.get(key) for key in ("acks_uncommitted", "confirm", "consumer_count", "global_prefetch_count", "messages_unacknowledged", "messages_uncommitted", "messages_unconfirmed", "number", "prefetch_count", "state", "transactional", "user", "vhost", "user_who_performed_action")})
    doc = w.json(f"/connections/{name}")
    side.say("connection", {key: doc.get(key) for key in ("auth_mechanism", "channel_max", "channels", "client_properties", "frame_max", "protocol", "state", "ssl", "timeout", "type", "user", "vhost", "user_provided_name", "user_who_performed_action")})
    for consumer in sorted(w.json("/consumers"), key=lambda one: one["consumer_tag"]):
        side.say(f"consumer {consumer['consumer_tag']}", {key: consumer.get(key) for key in ("ack_required", "active", "activity_status", "arguments", "exclusive", "prefetch_count", "queue", "consumer_timeout")})
    for queue in ("sclassic", "squorum", "srest"):
        doc = w.json(f"/queues/%2F/{queue}")
        side.say(f"queue {queue}", {key: doc.get(key) for key in ("arguments", "auto_delete", "consumers", "consumer_capacity", "consumer_utilisation", "durable", "exclusive", "exclusive_consumer_tag", "messages", "messages_ready", "messages_unacknowledged", "message_bytes", "message_bytes_ready", "message_bytes_unacknowledged", "message_bytes_persistent", "message_bytes_ram", "messages_persistent", "messages_ram", "operator_policy", "policy", "effective_policy_definition", "single_active_consumer_tag", "state", "type", "storage_version", "delivery_limit", "open_files")})
    status, headers, data = w.ask("DELETE", f"/connections/{name}", headers={"X-Reason": "because"})
    side.say("close", f"{status} {data.decode()}")
    side.say("closed", c.seen(1))
    c = side.only()
    for kind in ("sclassic", "squorum", "srest"):
        c.do("queue.delete", queue=kind)


@group
def limits_and_rights(side):
    w = Web(side)
    perms = {"configure": ".*", "write": ".*", "read": ".*"}
    w.ask("PUT", "/vhosts/l", {})
    w.ask("PUT", "/permissions/l/guest", perms)
    w.ask("PUT", "/vhost-limits/l/max-queues", {"value": 1})
    c = side.client(vhost="l")
    side.say("first", c.do("queue.declare", queue="one", durable=True))
    side.say("again", c.do("queue.declare", queue="one", durable=True))
    for label, how in {"named": dict(queue="two"), "exclusive": dict(queue="", exclusive=True), "quorum": dict(queue="three", durable=True, arguments=table_of("quorum")), "passive": dict(queue="two", passive=True)}.items():
        side.say(f"over the limit {label}", c.do("queue.declare", **how))
    w.ask("PUT", "/vhost-limits/l/max-queues", {"value": 0})
    side.say("limit 0 again", c.do("queue.declare", queue="one", durable=True))
    w.ask("DELETE", "/vhost-limits/l/max-queues")
    w.ask("PUT", "/vhost-limits/l/max-connections", {"value": 1})
    opened = lambda **how: side.say(f"opened {how}", attempt(lambda: side.client(**how)))

    def attempt(what):
        try:
            what()
            return "opened"
        except AssertionError as error:
            return str(error)
        except Exception as error:
            return repr(error)

    time.sleep(0.3)
    opened(vhost="l")
    w.ask("PUT", "/vhost-limits/l/max-connections", {"value": 0})
    time.sleep(0.3)
    opened(vhost="l")
    w.ask("PUT", "/vhost-limits/l/max-connections", {"value": -1})
    time.sleep(0.3)
    opened(vhost="l")
    w.ask("PUT", "/users/lu", {"password": "lu", "tags": ""})
    opened(vhost="l", user="lu", password="lu")
    w.ask("PUT", "/permissions/l/lu", {"configure": "^c", "write": "^w", "read": "^r"})
    w.ask("PUT", "/user-limits/lu/max-connections", {"value": 1})
    time.sleep(0.3)
    opened(vhost="l", user="lu", password="lu")
    opened(vhost="l", user="lu", password="lu")
    w.ask("PUT", "/user-limits/lu/max-connections", {"value": 0})
    time.sleep(0.3)
    opened(vhost="l", user="lu", password="lu")
    w.ask("DELETE", "/user-limits/lu/max-connections")
    w.ask("PUT", "/user-limits/lu/max-channels", {"value": 1})
    time.sleep(0.3)
    d = side.client(vhost="l", user="lu", password="lu")
    d.channel()
    d.wire.send(2, "channel.open")
    side.say("second channel", d.seen(0.5))
    w.ask("PUT", "/user-limits/lu/max-channels", {"value": 0})
    time.sleep(0.3)
    d = side.client(vhost="l", user="lu", password="lu")
    d.wire.send(1, "channel.open")
    side.say("no channel", d.seen(0.5))
    w.ask("DELETE", "/user-limits/lu/max-channels")
    time.sleep(0.3)
    c.must("queue.declare", queue="r", durable=True)
    c.must("queue.declare", queue="w", durable=True)
    c.must("exchange.declare", exchange="rx", type="topic")
    c.must("exchange.declare", exchange="wx", type="topic")
    d = side.client(vhost="l", user="lu", password="lu")
    cases = [
        ("queue.declare", dict(queue="x")), ("queue.declare", dict(queue="c")), ("queue.declare", dict(queue="", exclusive=True)), ("queue.declare", dict(queue="r", passive=True)), ("queue.declare", dict(queue="cd", arguments=[("x-dead-letter-exchange", ("S", "wx"))])), ("queue.declare", dict(queue="cd", arguments=[("x-dead-letter-exchange", ("S", "rx"))])), ("queue.delete", dict(queue="r")), ("queue.delete", dict(queue="nothing")), ("queue.purge", dict(queue="w")), ("queue.purge", dict(queue="r")),
        ("queue.purge", dict(queue="nothing")), ("basic.get", dict(queue="w")), ("basic.get", dict(queue="r")), ("basic.consume", dict(queue="w", tag="t")), ("queue.bind", dict(queue="w", exchange="wx")), ("queue.bind", dict(queue="r", exchange="rx")), ("queue.bind", dict(queue="w", exchange="rx")), ("queue.unbind", dict(queue="r", exchange="rx")), ("exchange.declare", dict(exchange="x", type="direct")), ("exchange.declare", dict(exchange="cx", type="direct", arguments=[("alternate-exchange", ("S", "wx"))])), ("exchange.declare", dict(exchange="cx2", type="direct", arguments=[("alternate-exchange", ("S", "rx"))])),
        ("exchange.declare", dict(exchange="rx", passive=True)), ("exchange.delete", dict(exchange="rx")), ("exchange.delete", dict(exchange="nothing")), ("exchange.bind", dict(source="rx", destination="wx")), ("exchange.bind", dict(source="wx", destination="rx")), ("exchange.bind", dict(source="wx", destination="wx")), ("exchange.declare", dict(exchange="", type="direct")), ("exchange.declare", dict(exchange="amq.direct", type="direct")), ("queue.bind", dict(queue="w", exchange="")), ("queue.declare", dict(queue="amq.x")),
    ]
    for name, given in cases:
        side.say(f"rights {name} {given}", d.do(name, **given))
    for exchange, key in (("rx", "k"), ("wx", "k"), ("", "w"), ("nothing", "k")):
        d.publish(key, b"x", exchange=exchange)
        side.say(f"rights publish {exchange!r}", d.seen(0.2))
    w.ask("PUT", "/topic-permissions/l/lu", {"exchange": "wx", "write": "^a", "read": "^b"})
    time.sleep(0.2)
    d = side.client(vhost="l", user="lu", password="lu")
    for key in ("a.b", "b.a"):
        d.publish(key, b"x", exchange="wx")
        side.say(f"topic publish {key}", d.seen(0.2))
    w.ask("PUT", "/permissions/l/lu", {"configure": "^$", "write": "", "read": ""})
    d = side.client(vhost="l", user="lu", password="lu")
    for name, given in (("queue.declare", dict(queue="x")), ("queue.declare", dict(queue="", exclusive=True)), ("basic.get", dict(queue="r"))):
        side.say(f"empty rights {name}", d.do(name, **given))
    d.publish("r", b"x")
    side.say("empty rights publish to the default exchange", d.seen(0.2))
    status = w.ask("DELETE", "/users/lu")[0]
    side.say("deleted user's connection", [status] + d.seen(1))
    status = w.ask("DELETE", "/vhosts/l")[0]
    side.say("deleted vhost's connection", [status] + c.seen(1.5))
