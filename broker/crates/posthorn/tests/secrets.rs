//! No password, valid or invalid, appears in the log at any level, or in a response.

use crate::client::Client;
use crate::program::{Result, Scratch, Serving, address, posthorn, serve};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use std::fs::File;

/// Each is used once, so that one that appears identifies its source.
const SECRETS: [&str; 8] = [
    "secret-of-the-first-user",
    "secret-that-is-wrong-over-http",
    "secret-that-is-wrong-over-amqp",
    "secret-of-a-new-user",
    "secret-in-a-body-that-is-no-json",
    "secret-in-a-document",
    "secret-that-was-changed",
    "secret-in-a-url",
];

struct ApiClient {
    url: String,
    agent: ureq::Agent,
    heard: String,
}

impl ApiClient {
    fn ask(&mut self, password: &str, method: &str, path: &str, body: String) -> Result<u16> {
        let login = STANDARD.encode(format!("guest:{password}"));
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header("authorization", format!("Basic {login}"));
        let mut answer = self.agent.run(request.body(body)?)?;
        self.heard.push_str(&answer.body_mut().read_to_string()?);
        Ok(answer.status().as_u16())
    }
}

fn use_all(api: &mut ApiClient, amqp: &str) -> Result<()> {
    let [
        first,
        wrong,
        elsewhere,
        new,
        broken,
        document,
        changed,
        in_url,
    ] = SECRETS;
    let user = |password: &str| json!({"password": password, "tags": "management"});
    assert_eq!(api.ask(wrong, "GET", "/api/whoami", String::new())?, 401);
    assert!(Client::open(amqp, "guest", elsewhere, "/").is_err());
    let mut put = |path: &str, body: String| api.ask(first, "PUT", path, body);
    assert_eq!(put("/api/users/new", user(new).to_string())?, 201);
    assert_eq!(put("/api/users/new", user(changed).to_string())?, 204);
    let cut = format!("{{\"password\": \"{broken}\", \"tags\"");
    assert_eq!(put("/api/users/other", cut)?, 400);
    let wrong_type = json!({"password": [broken], "tags": broken.len()});
    assert_eq!(put("/api/users/other", wrong_type.to_string())?, 400);
    let imported = json!({"users": [
        {"name": "a", "password": document, "tags": []},
        {"name": "b", "password": document, "password_hash": document, "tags": []},
    ]});
    assert_eq!(put("/api/definitions", imported.to_string())?, 400);
    // RabbitMQ's path for hashing. The result belongs to the client.
    let hashed = format!("/api/auth/hash_password/{in_url}");
    assert_eq!(api.ask(first, "GET", &hashed, String::new())?, 200);
    for path in [
        "/api/users",
        "/api/users/new",
        "/api/definitions",
        "/api/overview",
        "/api/connections",
        "/api/nodes",
        "/api/parameters",
    ] {
        assert_eq!(api.ask(first, "GET", path, String::new())?, 200);
    }
    let nowhere = api.ask(first, "GET", "/api/nothing", String::new())?;
    assert_eq!(nowhere, 404);
    let mut client = Client::open(amqp, "guest", first, "/")?;
    client.declare("q", "classic")
}

#[test]
fn passwords_appear_neither_in_the_log_nor_in_responses() -> Result<()> {
    let scratch = Scratch::new("secrets")?;
    let (dir, ready) = (scratch.0.join("data"), scratch.0.join("ready"));
    let log = scratch.0.join("log");
    let mut command = serve(&dir, &ready);
    let first = SECRETS[0];
    let password = format!("default_pass={first}");
    for setting in [&*password, "log.level=trace", "log.format=json"] {
        command.arg("--set").arg(setting);
    }
    let (out, err) = (File::create(&log)?, File::create(scratch.0.join("err"))?);
    let node = Serving(command.stdout(out).stderr(err).spawn()?);
    let config = ureq::Agent::config_builder().http_status_as_error(false);
    let mut api = ApiClient {
        url: format!("http://{}", address(&ready, "management")?),
        agent: config.build().new_agent(),
        heard: String::new(),
    };
    use_all(&mut api, &address(&ready, "amqp")?)?;
    let refused = posthorn()
        .args(["ctl", "--url", &api.url, "--password", SECRETS[1], "status"])
        .output()?;
    drop(node);
    let mut told = api.heard.into_bytes();
    for file in ["log", "err"] {
        told.extend(std::fs::read(scratch.0.join(file))?);
    }
    told.extend(refused.stdout);
    told.extend(refused.stderr);
    let told = String::from_utf8_lossy(&told);
    assert!(
        told.contains("login") || told.contains("Login"),
        "nothing was told"
    );
    for word in ["node.ready", "management_no_route"] {
        assert!(told.contains(word), "the log does not say {word}");
    }
    for secret in SECRETS {
        let login = STANDARD.encode(format!("guest:{secret}"));
        for form in [secret, STANDARD.encode(secret).as_str(), login.as_str()] {
            let line = told.lines().find(|l| l.contains(form));
            assert_eq!(line, None, "{form}");
        }
    }
    Ok(())
}
