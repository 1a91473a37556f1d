//! Logins with access tokens of an OpenID provider in the test process.

use crate::audit_clients::{Amqp10Client, Http, StreamClient};
use crate::client::Client;
use crate::program::{Result, Scratch, Serving, address, eventually, serve};
use authority::{OidcProvider, PasswordServer, TokenKey};
use codec_mqtt::Qos;
use env::Clock as _;
use serde_json::{Value as Json, json};
use std::fs::File;
use std::path::PathBuf;

/// Everything on objects whose names begin with `app`, and MQTT below `app/`.
const SCOPES: &str = "rabbitmq.configure:%2F/app* rabbitmq.write:%2F/app* rabbitmq.read:%2F/app* \
     rabbitmq.write:%2F/amq.topic/app.* rabbitmq.read:%2F/amq.topic/app.* \
     rabbitmq.configure:%2F/mqtt-* rabbitmq.write:%2F/mqtt-* rabbitmq.read:%2F/mqtt-* \
     rabbitmq.write:%2F/amq.default rabbitmq.tag:management";

struct Broker {
    scratch: Scratch,
    ready: PathBuf,
    _node: Serving,
}

impl Broker {
    fn start(name: &str, provider: &OidcProvider, settings: &[&str]) -> Result<Broker> {
        let scratch = Scratch::new(name)?;
        let (dir, ready) = (scratch.0.join("data"), scratch.0.join("ready"));
        let mut command = serve(&dir, &ready);
        let issuer = format!("auth_oauth2.issuer={}", provider.issuer());
        let audit = format!("audit.file={}", scratch.0.join("audit.log").display());
        let common = [
            "auth_backends.1=oauth2",
            "auth_oauth2.resource_server_id=rabbitmq",
            "mqtt.listeners.tcp.default=127.0.0.1:0",
            "stream.listeners.tcp.default=127.0.0.1:0",
            &issuer,
            &audit,
        ];
        for setting in common.iter().chain(settings) {
            command.arg("--set").arg(setting);
        }
        let log = File::create(scratch.0.join("log"))?;
        let node = Serving(command.stderr(log.try_clone()?).stdout(log).spawn()?);
        Ok(Broker {
            scratch,
            ready,
            _node: node,
        })
    }

    fn address(&self, listener: &str) -> Result<String> {
        address(&self.ready, listener)
    }

    fn amqp(&self, user: &str, token: &str) -> Result<Client> {
        Client::open(&self.address("amqp")?, user, token, "/")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.scratch.0.join("log")).unwrap_or_default()
    }

    /// Users of successful logins in the audit log, by protocol.
    fn logins(&self) -> Vec<(String, String)> {
        let text = std::fs::read_to_string(self.scratch.0.join("audit.log")).unwrap_or_default();
        let records = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Json>(line).ok());
        let logins = records.filter(|r| r["operation"] == "login" && r["outcome"] == "ok");
        let field = |record: &Json, name| record[name].as_str().unwrap_or_default().to_owned();
        logins
            .map(|record| (field(&record, "protocol"), field(&record, "user")))
            .collect()
    }

    fn whoami(&self, authorization: &str) -> Result<(u16, Json)> {
        let mut http = Http::open(&self.address("management")?)?;
        let (status, body) = http.ask_as("GET", "whoami", authorization, &Json::Null)?;
        Ok((status, serde_json::from_slice(&body)?))
    }
}

/// Claims that are valid for so many seconds.
fn claims(seconds: u64, scopes: &str) -> Json {
    let now = env::real::RealClock::new().wall().0 / 1000;
    json!({"sub": "alice", "aud": ["rabbitmq"], "exp": now + seconds, "scope": scopes})
}

fn error_of<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn token_logs_in_over_every_protocol_with_the_permissions_of_its_scopes() -> Result<()> {
    let key = TokenKey::new("k1")?;
    let provider = OidcProvider::start(&[&key])?;
    let broker = Broker::start("oauth2", &provider, &["auth_backends.2=internal"])?;
    let token = key.token(&claims(3600, SCOPES))?;

    let mut client = broker.amqp("ignored", &token)?;
    client.declare("app-q", "classic")?;
    let refused = error_of(client.declare("other", "classic"));
    assert!(
        refused.starts_with("403 ") && refused.contains("refused for user 'alice'"),
        "{refused}"
    );
    let mut client = broker.amqp("guest", &token)?;
    let select = codec_amqp091::Method::ConfirmSelect { no_wait: false };
    client.ask(&select, "confirm.select-ok")?;
    client.publish_to("amq.topic", "app.x", 8)?;
    client.until_true(|c| c.unconfirmed() == 0)?;
    client.publish_to("amq.topic", "other", 8)?;
    let refused = error_of(client.until_true(|c| c.unconfirmed() == 0));
    assert!(refused.contains("access to topic 'other'"), "{refused}");

    let amqp = broker.address("amqp")?;
    let mut client = Amqp10Client::open(&amqp, "", &token)?;
    let status = client.manage("PUT", "/queues/app-ten", &[])?;
    assert!(status.starts_with('2'), "{status}");
    assert!(client.manage("PUT", "/queues/other", &[]).is_err());

    let mqtt = broker.address("mqtt")?;
    let mut client = crate::mqtt_client::Client::log_in(&mqtt, "anyone", &token)?;
    client.subscribe("app/t", Qos::AtLeastOnce)?;
    client.publish_at(Qos::AtMostOnce, "app/t", 0, "text", false)?;
    assert_eq!(client.message()?.payload, "text");
    assert!(client.subscribe("other", Qos::AtLeastOnce).is_err());

    let mut client = StreamClient::open(&broker.address("stream")?, "x", &token)?;
    client.create("app-s")?;
    assert!(client.create("other").is_err());

    let (status, user) = broker.whoami(&format!("Bearer {token}"))?;
    assert_eq!(
        (status, &user["name"], &user["tags"]),
        (200, &json!("alice"), &json!(["management"]))
    );
    let mut http = Http::open(&broker.address("management")?)?;
    let (status, queues) = http.ask("GET", "queues", ("ignored", &token), &Json::Null)?;
    let queues: Json = serde_json::from_slice(&queues)?;
    assert_eq!(status, 200);
    assert!(
        queues
            .as_array()
            .is_some_and(|all| all.iter().any(|q| q["name"] == "app-q"))
    );
    let status = http.send("PUT", "queues/%2F/other", ("", &token), &json!({}))?;
    assert_eq!(status, 401, "the scopes do not permit this name");
    let status = http.send("GET", "users", ("", &token), &Json::Null)?;
    assert_eq!(status, 401, "only administrators see users");
    let without_tag = key.token(&claims(3600, "rabbitmq.read:*/*"))?;
    let status = http.send("GET", "queues", ("", &without_tag), &Json::Null)?;
    assert_eq!(status, 401, "the API needs a tag");

    // The second backend.
    broker.amqp("guest", "guest")?.declare("other", "classic")?;
    assert!(broker.amqp("guest", "wrong").is_err());
    let logins = eventually("the records of the logins", || {
        let logins = broker.logins();
        (logins.len() >= 7).then_some(logins)
    })?;
    for protocol in ["amqp091", "amqp10", "mqtt", "stream", "http"] {
        assert!(
            logins.contains(&(protocol.to_owned(), "alice".to_owned())),
            "{logins:?}"
        );
    }
    assert!(!broker.log().contains(&token), "tokens are secret");
    Ok(())
}

#[test]
fn refused_tokens_are_explained_in_the_log_only() -> Result<()> {
    let (key, unknown) = (TokenKey::new("k1")?, TokenKey::new("k2")?);
    let provider = OidcProvider::start(&[&key])?;
    let broker = Broker::start("oauth2-refused", &provider, &[])?;
    let valid = claims(3600, SCOPES);
    broker.amqp("", &key.token(&valid)?)?;
    let mut expired = valid.clone();
    expired["exp"] = json!(1_000_000_000);
    let mut foreign = valid.clone();
    foreign["aud"] = json!("another");
    let unsigned = {
        let token = key.token(&valid)?;
        token
            .rsplit_once('.')
            .map(|(signed, _)| format!("{signed}."))
            .unwrap_or_default()
    };
    for (token, reason) in [
        (key.token(&expired)?, "the token has expired"),
        (key.token(&foreign)?, "another audience"),
        (unknown.token(&valid)?, "key 'k2' is unknown"),
        (unsigned, "the token is not valid"),
        ("guest".to_owned(), "no JSON Web Token"),
    ] {
        let text = error_of(broker.amqp("guest", &token));
        assert!(
            text.starts_with("403 ACCESS_REFUSED - Login was refused"),
            "{text}"
        );
        assert!(!text.contains(reason), "{text}");
        assert!(broker.log().contains(reason), "{reason}: {}", broker.log());
    }
    assert!(
        broker.amqp("guest", "guest").is_err(),
        "internal is no backend"
    );
    assert!(
        crate::mqtt_client::Client::log_in(&broker.address("mqtt")?, "guest", "guest").is_err()
    );
    assert_eq!(broker.whoami("Basic Z3Vlc3Q6Z3Vlc3Q=")?.0, 401);
    let nothing = error_of(broker.amqp("", &key.token(&claims(3600, "openid"))?));
    assert!(
        nothing.contains("access to vhost '/' refused for user 'alice'"),
        "{nothing}"
    );
    Ok(())
}

#[test]
fn new_keys_of_the_provider_are_fetched_while_the_node_runs() -> Result<()> {
    let (old, new) = (TokenKey::new("old")?, TokenKey::new("new")?);
    let provider = OidcProvider::start(&[&old])?;
    let broker = Broker::start("oauth2-keys", &provider, &[])?;
    broker.amqp("", &old.token(&claims(3600, SCOPES))?)?;
    provider.publish(&[&new]);
    let token = new.token(&claims(3600, SCOPES))?;
    let bearer = format!("Bearer {token}");
    eventually("the new key", || {
        broker
            .whoami(&bearer)
            .ok()
            .filter(|(status, _)| *status == 200)
    })?;
    assert_eq!(provider.fetches(), 2);
    broker.amqp("", &token)?;
    crate::mqtt_client::Client::log_in(&broker.address("mqtt")?, "x", &token)?;
    let removed = old.token(&claims(3600, SCOPES))?;
    assert!(broker.amqp("", &removed).is_err(), "the key was removed");
    provider.break_down();
    broker.amqp("", &token)?.declare("app-q", "quorum")?;
    Ok(())
}

#[test]
fn connection_ends_with_its_token_unless_it_is_renewed() -> Result<()> {
    let key = TokenKey::new("k1")?;
    let provider = OidcProvider::start(&[&key])?;
    let broker = Broker::start("oauth2-expiry", &provider, &[])?;
    let (amqp, mqtt) = (broker.address("amqp")?, broker.address("mqtt")?);
    let stream = broker.address("stream")?;
    let narrow = SCOPES.replace("app*", "new*");
    let renewed = key.token(&claims(3600, &narrow))?;
    let token = key.token(&claims(8, SCOPES))?;

    let mut ends_091 = broker.amqp("", &token)?;
    let mut ends_10 = Amqp10Client::open(&amqp, "", &token)?;
    let mut ends_mqtt = crate::mqtt_client::Client::log_in(&mqtt, "x", &token)?;
    let mut ends_stream = StreamClient::open(&stream, "", &token)?;

    let mut stays_091 = broker.amqp("", &token)?;
    stays_091.declare("app-q", "classic")?;
    stays_091.update_secret(&renewed)?;
    let mut stays_10 = Amqp10Client::open(&amqp, "", &token)?;
    assert_eq!(stays_10.renew_token(&renewed)?, "204");
    let mut stays_stream = StreamClient::open(&stream, "", &token)?;
    stays_stream.renew("", &renewed)?;

    let text = error_of(ends_091.until_true(|_| false));
    assert!(
        text.starts_with("320 ") && text.contains("credential expired"),
        "{text}"
    );
    assert_eq!(ends_10.until_ended(), "the server closed the connection");
    assert!(ends_mqtt.message().is_err());
    ends_stream.until_closed()?;

    stays_091.declare("new-q", "classic")?;
    assert!(
        stays_091.declare("app-q", "classic").is_err(),
        "the new scopes apply"
    );
    let status = stays_10.manage("PUT", "/queues/new-ten", &[])?;
    assert!(status.starts_with('2'), "{status}");
    assert!(stays_10.manage("PUT", "/queues/app-ten", &[]).is_err());
    stays_stream.create("new-s")?;
    assert!(stays_stream.create("app-s").is_err());

    // A renewal must be valid, and of the same user.
    let mut other = claims(3600, SCOPES);
    other["sub"] = json!("bob");
    for wrong in [key.token(&other)?, "text".to_owned()] {
        let mut client = broker.amqp("", &renewed)?;
        let text = error_of(client.update_secret(&wrong));
        let expected = "530 NOT_ALLOWED - New secret was refused by one of the backends";
        assert_eq!(text, expected);
        let mut client = Amqp10Client::open(&amqp, "", &renewed)?;
        let text = error_of(client.renew_token(&wrong));
        assert_eq!(text, "the server closed the connection");
        let mut client = StreamClient::open(&stream, "", &renewed)?;
        assert!(client.renew("", &wrong).is_err());
    }
    Ok(())
}

#[test]
fn http_server_checks_passwords_of_users_whose_permissions_are_stored() -> Result<()> {
    let key = TokenKey::new("k1")?;
    let provider = OidcProvider::start(&[&key])?;
    let server = PasswordServer::start("username=guest&password=outside", "allow")?;
    let url = format!("auth_http.user_path={}", server.url());
    let broker = Broker::start(
        "auth-http",
        &provider,
        &[
            "auth_backends.2.authn=http",
            "auth_backends.2.authz=internal",
            "auth_http.http_method=post",
            "auth_cache.cache_ttl=60000",
            &url,
        ],
    )?;
    let amqp = broker.address("amqp")?;
    broker.amqp("guest", "outside")?.declare("q", "classic")?;
    assert!(
        broker.amqp("guest", "guest").is_err(),
        "internal is no backend for passwords"
    );
    let mut client = Amqp10Client::open(&amqp, "guest", "outside")?;
    assert!(client.manage("PUT", "/queues/q2", &[])?.starts_with('2'));
    let mut client =
        crate::mqtt_client::Client::log_in(&broker.address("mqtt")?, "guest", "outside")?;
    client.subscribe("t", Qos::AtMostOnce)?;
    StreamClient::open(&broker.address("stream")?, "guest", "outside")?.create("s")?;
    let mut http = Http::open(&broker.address("management")?)?;
    let status = http.send("GET", "users", ("guest", "outside"), &Json::Null)?;
    assert_eq!(status, 200, "the tags of the stored user count");
    assert_eq!(
        server.requests().len(),
        2,
        "the right password is asked about once"
    );
    Ok(())
}

#[test]
fn web_ui_gets_tokens_through_the_node_and_passwords_are_refused() -> Result<()> {
    let key = TokenKey::new("k1")?;
    let provider = OidcProvider::start(&[&key])?;
    let broker = Broker::start(
        "oauth2-web",
        &provider,
        &[
            "auth_backends.2=internal",
            "management.oauth_enabled=true",
            "management.oauth_client_id=web-ui",
            "management.oauth_client_secret=hidden",
        ],
    )?;
    let ask = |method: &str, path: &str, authorization: &str, body: &Json| -> Result<(u16, Json)> {
        let mut http = Http::open(&broker.address("management")?)?;
        let (status, body) = http.ask_as(method, path, authorization, body)?;
        Ok((status, serde_json::from_slice(&body)?))
    };
    let methods = json!({
        "oauth_enabled": true, "oauth_client_id": "web-ui", "oauth_provider_url": provider.issuer(),
        "oauth_scopes": "openid profile", "oauth_disable_basic_auth": true,
        "oauth_initiated_logon_type": "sp_initiated",
        "oauth_authorization_endpoint": format!("{}/authorize", provider.issuer()),
        "oauth_end_session_endpoint": null,
    });
    assert_eq!(ask("GET", "auth", "", &Json::Null)?, (200, methods));

    let token = key.token(&claims(3600, SCOPES))?;
    provider.answer_tokens(200, json!({"access_token": token, "refresh_token": "r"}));
    let code = json!({"code": "c", "code_verifier": "v", "redirect_uri": "http://x/"});
    let (status, tokens) = ask("POST", "oauth/token", "", &code)?;
    let expected =
        json!({"access_token": token, "refresh_token": "r", "id_token": null, "expires_in": null});
    assert_eq!((status, tokens), (200, expected));
    let (status, user) = broker.whoami(&format!("Bearer {token}"))?;
    assert_eq!((status, &user["name"]), (200, &json!("alice")));

    provider.answer_tokens(400, json!({"error": "invalid_grant"}));
    for (body, status, part) in [
        (&code, 400, "refuses the sign-in: invalid_grant"),
        (&json!({"code": "c"}), 400, "'code_verifier' must be a text"),
        (&json!({"refresh_token": 1}), 400, "'refresh_token' must be"),
        (
            &json!({"refresh_token": "x".repeat(30_000)}),
            413,
            "20480 bytes",
        ),
    ] {
        let (found, answer) = ask("POST", "oauth/token", "", body)?;
        let reason = answer["reason"].as_str().unwrap_or_default();
        assert!(found == status && reason.contains(part), "{found} {answer}");
    }
    assert_eq!(provider.token_requests().len(), 2);
    provider.answer_tokens(500, json!({"access_token": token}));
    let (status, answer) = ask("POST", "oauth/token", "", &json!({"refresh_token": "r-1"}))?;
    let reason = format!(
        "the identity provider '{}' does not respond as it should; the log of this node has the cause",
        provider.issuer()
    );
    assert_eq!((status, &answer["reason"]), (503, &json!(reason)));

    let mut http = Http::open(&broker.address("management")?)?;
    let (status, refused) = http.ask("GET", "whoami", ("guest", "guest"), &Json::Null)?;
    let refused = String::from_utf8_lossy(&refused);
    assert!(
        status == 401 && refused.contains("passwords are disabled"),
        "{status} {refused}"
    );
    let (status, user) = http.ask("GET", "whoami", ("token", &token), &Json::Null)?;
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&user));
    let (status, _) = http.ask(
        "GET",
        "whoami",
        ("guest", "eyJhbGciOiJub25lIn0"),
        &Json::Null,
    )?;
    assert_eq!(status, 401);
    broker.amqp("guest", "guest")?;
    let log = broker.log();
    assert!(
        log.contains("oauth2.sign_in_refused") && log.contains("/token: status 500"),
        "{log}"
    );
    for secret in ["hidden", "r-1", &token] {
        assert!(!log.contains(secret), "{secret}: {log}");
    }
    Ok(())
}
