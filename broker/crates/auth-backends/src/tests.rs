//! Tokens of a provider in this process, hostile ones among them.

use crate::keys::{KeySet, VerificationKey};
use crate::token::TokenError;
use crate::*;
use authority::{OidcProvider, PasswordServer, TokenKey};
use env::{Clock, Time, WallTime};
use metadata::{Identity, Right, Tree};
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const NOW: WallTime = WallTime(1_700_000_000_000);

fn claims() -> Json {
    json!({
        "sub": "alice",
        "aud": "rabbitmq",
        "exp": NOW.0 / 1000 + 600,
        "scope": "rabbitmq.read:*/q other.write:*/* rabbitmq.tag:management openid",
    })
}

fn with(changes: Json) -> Json {
    let mut claims = claims();
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Json::Null => claims.as_object_mut().unwrap().remove(name),
            value => claims
                .as_object_mut()
                .unwrap()
                .insert(name.clone(), value.clone()),
        };
    }
    claims
}

fn settings() -> TokenSettings {
    TokenSettings {
        resource_server_id: "rabbitmq".to_owned(),
        ..TokenSettings::default()
    }
}

fn key_set(keys: &[&TokenKey]) -> KeySet {
    let keys: Vec<Json> = keys.iter().map(|key| key.jwk()).collect();
    KeySet::from_json(json!({"keys": keys}).to_string().as_bytes()).unwrap()
}

struct Rig {
    key: TokenKey,
    keys: KeySet,
    settings: TokenSettings,
}

impl Rig {
    fn new() -> Rig {
        let key = TokenKey::new("k1").unwrap();
        Rig {
            keys: key_set(&[&key]),
            key,
            settings: settings(),
        }
    }

    fn check(&self, token: &str) -> Result<Identity, TokenError> {
        self.settings
            .identify(token.as_bytes(), &self.keys, (NOW, 3))
    }

    fn identify(&self, claims: &Json) -> Result<Identity, TokenError> {
        self.check(&self.key.token(claims).unwrap())
    }

    fn refusal(&self, claims: &Json) -> String {
        match self.identify(claims) {
            Err(TokenError::Refused(why)) => why,
            other => panic!("{other:?}"),
        }
    }
}

fn may_read(identity: &Identity, queue: &str) -> bool {
    let tree = Tree::default();
    tree.access_of(&identity.user, Some(identity))
        .permits("/", Right::Read, queue)
}

#[test]
fn token_of_a_known_key_identifies_its_user() {
    let rig = Rig::new();
    let identity = rig.identify(&claims()).unwrap();
    assert_eq!((&*identity.user, identity.backend), ("alice", 3));
    assert_eq!(identity.tags, ["management".into()]);
    assert_eq!(identity.expires_at, Some(WallTime(NOW.0 + 600_000)));
    assert!(may_read(&identity, "q") && !may_read(&identity, "other"));
    let tree = Tree::default();
    let access = tree.access_of("alice", Some(&identity));
    assert!(!access.permits("/", Right::Write, "q"), "another prefix");
}

#[test]
fn times_are_checked_with_the_clock_of_the_node() {
    let rig = Rig::new();
    let now = NOW.0 / 1000;
    assert!(rig.refusal(&with(json!({"exp": now}))).contains("expired"));
    assert!(rig.refusal(&with(json!({"exp": -5}))).contains("expired"));
    assert!(rig.refusal(&with(json!({"exp": "never"}))).contains("exp"));
    assert!(
        rig.refusal(&with(json!({"nbf": now + 600})))
            .contains("not valid yet")
    );
    assert!(rig.identify(&with(json!({"nbf": now + 30}))).is_ok());
    let endless = rig.identify(&with(json!({"exp": null}))).unwrap();
    assert_eq!(endless.expires_at, None);
    assert!(rig.identify(&with(json!({"exp": 1e300}))).is_ok());
}

#[test]
fn audience_must_have_the_resource_server() {
    let mut rig = Rig::new();
    for accepted in [
        json!("rabbitmq"),
        json!("a rabbitmq"),
        json!(["a", "rabbitmq"]),
    ] {
        assert!(rig.identify(&with(json!({"aud": accepted}))).is_ok());
    }
    for refused in [
        json!("other"),
        json!(["rabbitmqx"]),
        json!({"rabbitmq": 1}),
        json!(7),
    ] {
        let why = rig.refusal(&with(json!({"aud": refused})));
        assert!(why.contains("audience"), "{why}");
    }
    let none = with(json!({"aud": null}));
    assert!(rig.refusal(&none).contains("no audience"));
    rig.settings.verify_aud = false;
    assert!(rig.identify(&none).is_ok());
}

#[test]
fn user_is_named_by_the_first_preferred_claim() {
    let mut rig = Rig::new();
    let both = with(json!({"client_id": "app", "email": "a@b"}));
    assert_eq!(&*rig.identify(&both).unwrap().user, "alice");
    rig.settings.preferred_username_claims = [(1, "email".to_owned())].into();
    assert_eq!(&*rig.identify(&both).unwrap().user, "a@b");
    let app = with(json!({"sub": null, "client_id": "app"}));
    assert_eq!(&*rig.identify(&app).unwrap().user, "app");
    assert!(
        rig.refusal(&with(json!({"sub": null})))
            .contains("names the user")
    );
    assert!(rig.identify(&with(json!({"sub": ["x"]}))).is_err());
    assert!(
        rig.refusal(&with(json!({"sub": "x".repeat(256)})))
            .contains("255")
    );
}

#[test]
fn scopes_come_from_configured_claims_and_aliases() {
    let mut rig = Rig::new();
    let has = |rig: &Rig, claims: Json| may_read(&rig.identify(&with(claims)).unwrap(), "x");
    assert!(has(&rig, json!({"scope": ["rabbitmq.read:*/x"]})));
    assert!(!has(&rig, json!({"roles": ["rabbitmq.read:*/x"]})));
    rig.settings.additional_scopes_key = "roles realm.roles".to_owned();
    assert!(has(&rig, json!({"roles": ["rabbitmq.read:*/x"]})));
    assert!(has(
        &rig,
        json!({"realm": {"roles": "a rabbitmq.read:*/x"}})
    ));
    assert!(has(
        &rig,
        json!({"roles": {"rabbitmq": ["read:*/x"], "b": ["c"]}})
    ));
    assert!(!has(&rig, json!({"roles": {"b": ["rabbitmq.read:*/x"]}})));
    let permissions = json!({"permissions": [{"scopes": ["rabbitmq.read:*/x"]}, 7]});
    assert!(has(&rig, json!({"authorization": permissions})));

    assert!(!has(&rig, json!({"scope": "admin"})));
    let alias = (
        "admin".to_owned(),
        "rabbitmq.read:*/* rabbitmq.tag:administrator".to_owned(),
    );
    rig.settings.scope_aliases = [alias].into();
    assert!(has(&rig, json!({"scope": "admin"})));

    rig.settings.scope_prefix = Some(String::new());
    assert!(has(&rig, json!({"scope": "read:*/x"})));
    rig.settings.scope_prefix = Some("api://".to_owned());
    assert!(has(&rig, json!({"scope": "api://read:*/x"})));
    assert!(!has(&rig, json!({"scope": "rabbitmq.read:*/x"})));
}

#[test]
fn token_without_key_id_needs_the_default_key_or_an_only_key() {
    let mut rig = Rig::new();
    let token = rig.key.token_with(None, &claims()).unwrap();
    assert!(rig.check(&token).is_ok());
    let other = TokenKey::new("k2").unwrap();
    rig.keys = key_set(&[&rig.key, &other]);
    assert!(matches!(rig.check(&token), Err(TokenError::Refused(_))));
    rig.settings.default_key = Some("k1".to_owned());
    assert!(rig.check(&token).is_ok());
}

#[test]
fn pem_files_have_keys_too() {
    let mut rig = Rig::new();
    let key = VerificationKey::from_pem(rig.key.pem().as_bytes()).unwrap();
    rig.keys = KeySet::default();
    rig.keys.insert("k1", key);
    assert!(rig.identify(&claims()).is_ok());
    let authority = authority::Authority::new("x").unwrap();
    assert!(VerificationKey::from_pem(authority.pem().as_bytes()).is_ok());
    for invalid in [
        "",
        "text",
        "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
    ] {
        assert!(VerificationKey::from_pem(invalid.as_bytes()).is_err());
    }
}

/// The text of a part of a token.
fn part(json: &Json) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(json.to_string())
}

#[test]
fn unsigned_and_forged_tokens_are_refused() {
    let rig = Rig::new();
    let body = part(&claims());
    for alg in ["none", "None", "NONE", ""] {
        let header = part(&json!({"alg": alg, "kid": "k1"}));
        for signature in ["", "AAAA"] {
            assert!(rig.check(&format!("{header}.{body}.{signature}")).is_err());
        }
    }
    // A shared secret made of the public key, in every form in which an attacker may have it.
    let jwk = rig.key.jwk().to_string();
    for secret in [rig.key.pem(), jwk] {
        let mut header = jsonwebtoken::Header::new(Algorithm::HS256);
        header.kid = Some("k1".to_owned());
        let secret = jsonwebtoken::EncodingKey::from_secret(secret.as_bytes()).unwrap();
        let token = jsonwebtoken::encode(&header, &claims(), &secret).unwrap();
        assert!(matches!(rig.check(&token), Err(TokenError::Refused(_))));
    }
    let forger = TokenKey::new("k1").unwrap();
    assert!(rig.check(&forger.token(&claims()).unwrap()).is_err());
    let unknown = forger.token_with(Some("k9"), &claims()).unwrap();
    assert_eq!(
        rig.check(&unknown),
        Err(TokenError::UnknownKey("k9".to_owned()))
    );
    // A key in the header is ignored.
    let token = rig.key.token(&claims()).unwrap();
    let (_, rest) = token.split_once('.').unwrap();
    let header = part(&json!({"alg": "ES256", "kid": "k1", "jwk": forger.jwk()}));
    assert!(rig.check(&format!("{header}.{rest}")).is_err());
}

#[test]
fn malformed_and_huge_tokens_are_refused() {
    let rig = Rig::new();
    let token = rig.key.token(&claims()).unwrap();
    let nested = rig
        .key
        .token(&with(json!({"cty": "JWT", "inner": token.clone()})));
    assert!(
        rig.check(&nested.unwrap()).is_ok(),
        "an inner token is no claim"
    );
    let deep = "[".repeat(8000);
    for malformed in [
        "".to_owned(),
        ".".to_owned(),
        "..".to_owned(),
        "a.b".to_owned(),
        format!("{token}.x"),
        format!(" {token}"),
        token.replace('.', ""),
        format!(
            "{}.{}.AAAA",
            part(&json!({"alg": "ES256", "kid": ["k1"]})),
            part(&claims())
        ),
        format!("{deep}.{deep}.{deep}"),
        "x".repeat(1 << 20),
    ] {
        assert!(matches!(rig.check(&malformed), Err(TokenError::Refused(_))));
    }
    let long = rig.refusal(&with(json!({"padding": "x".repeat(MAX_TOKEN)})));
    assert!(long.contains("bytes"), "{long}");
}

#[test]
fn only_configured_algorithms_are_accepted() {
    let mut rig = Rig::new();
    rig.settings.algorithms = [(1, Algorithm::RS256)].into();
    assert!(rig.refusal(&claims()).contains("algorithm"));
    rig.settings.algorithms.insert(2, Algorithm::ES256);
    assert!(rig.identify(&claims()).is_ok());
    for symmetric in ["HS256", "HS384", "HS512", "none", "es256"] {
        assert_eq!(algorithm(symmetric), None);
    }
}

#[test]
fn unusable_keys_of_a_set_are_left_out() {
    let key = TokenKey::new("good").unwrap();
    let mut encryption = key.jwk();
    encryption["use"] = json!("enc");
    encryption["kid"] = json!("enc");
    let mut other_algorithm = key.jwk();
    other_algorithm["alg"] = json!("RS256");
    other_algorithm["kid"] = json!("alg");
    let mut long = key.jwk();
    long["kid"] = json!("x".repeat(2000));
    let secret = json!({"kty": "oct", "kid": "oct", "k": "c2VjcmV0"});
    let set = json!({"keys": [
        7, {}, {"kty": "new"}, {"kty": "RSA", "n": "!", "e": "AQAB", "kid": "rsa"},
        encryption, other_algorithm, long, secret, key.jwk(),
    ]});
    let keys = KeySet::from_json(set.to_string().as_bytes()).unwrap();
    assert_eq!((keys.len(), keys.get("good").is_some()), (1, true));
    for invalid in ["", "[]", "{}", "{\"keys\": 7}", &"[".repeat(100_000)] {
        assert!(KeySet::from_json(invalid.as_bytes()).is_err());
    }
    let many: Vec<Json> = (0..1000)
        .map(|n| {
            let mut jwk = key.jwk();
            jwk["kid"] = json!(n.to_string());
            jwk
        })
        .collect();
    let keys = KeySet::from_json(json!({"keys": many}).to_string().as_bytes()).unwrap();
    assert_eq!(keys.len(), MAX_KEYS);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_tokens_do_not_panic(header: String, body: String, noise: Vec<u8>) {
        let rig = Rig::new();
        let _ = rig.settings.identify(&noise, &rig.keys, (NOW, 0));
        let _ = rig.check(&format!("{header}.{body}."));
        let parts = (part(&json!(header)), part(&json!(body)));
        let _ = rig.check(&format!("{}.{}.AAAA", parts.0, parts.1));
    }

    #[test]
    fn arbitrary_claims_do_not_panic(
        name in "aud|exp|nbf|sub|scope|authorization", text: String, number: f64, flag: bool,
    ) {
        let rig = Rig::new();
        for value in [json!(text), json!(number), json!([text]), json!({"permissions": flag})] {
            let _ = rig.identify(&with(json!({ name.clone(): value })));
        }
    }
}

/// A clock that a test advances.
#[derive(Clone, Default)]
struct TestClock(Arc<Mutex<Duration>>);

impl Clock for TestClock {
    fn now(&self) -> Time {
        Time::ZERO + *self.0.lock().unwrap()
    }

    fn wall(&self) -> WallTime {
        WallTime(NOW.0 + self.0.lock().unwrap().as_millis() as u64)
    }
}

impl TestClock {
    fn advance(&self, seconds: u64) {
        *self.0.lock().unwrap() += Duration::from_secs(seconds);
    }
}

/// Tokens of this provider alone.
fn token_backend(issuer: String) -> BackendSettings {
    let oauth2 = Some(BackendKind::OAuth2);
    let entry = BackendEntry {
        authn: oauth2,
        authz: oauth2,
    };
    BackendSettings {
        entries: [(1, entry)].into(),
        tokens: settings(),
        provider: ProviderSettings {
            issuer,
            ..ProviderSettings::default()
        },
        ..BackendSettings::default()
    }
}

struct Running {
    service: IdentityService,
    clock: TestClock,
}

impl Running {
    fn start(provider: &OidcProvider) -> Running {
        let settings = token_backend(provider.issuer());
        assert_eq!(settings.check(), [""; 0]);
        let clock = TestClock::default();
        let service = IdentityService::start(&settings, Arc::new(clock.clone()), [7; 32]).unwrap();
        Running { service, clock }
    }

    fn check(&self, token: String) -> Answer {
        let (answer, answers) = channel();
        self.service.identify(IdentityRequest {
            backend: 0,
            user: "ignored".to_owned(),
            password: token.into_bytes(),
            reply: Box::new(move |result| answer.send(result).unwrap()),
        });
        answers.recv().unwrap()
    }
}

#[test]
fn keys_are_discovered_and_fetched_again_for_an_unknown_key() {
    let (old, new) = (TokenKey::new("old").unwrap(), TokenKey::new("new").unwrap());
    let provider = OidcProvider::start(&[&old]).unwrap();
    let running = Running::start(&provider);
    assert_eq!(
        &*running.check(old.token(&claims()).unwrap()).unwrap().user,
        "alice"
    );
    assert_eq!(provider.fetches(), 1);
    provider.publish(&[&new]);
    // A flood of unknown keys does not become a flood of requests.
    for _ in 0..50 {
        assert!(running.check(new.token(&claims()).unwrap()).is_err());
    }
    assert_eq!(provider.fetches(), 1);
    running.clock.advance(60);
    assert!(running.check(new.token(&claims()).unwrap()).is_ok());
    assert!(
        running.check(old.token(&claims()).unwrap()).is_err(),
        "the key was removed"
    );
    assert_eq!(provider.fetches(), 2);
}

#[test]
fn known_keys_stay_in_use_while_the_provider_is_down() {
    let (old, new) = (TokenKey::new("old").unwrap(), TokenKey::new("new").unwrap());
    let provider = OidcProvider::start(&[&old]).unwrap();
    let running = Running::start(&provider);
    assert!(running.check(old.token(&claims()).unwrap()).is_ok());
    provider.break_down();
    running.clock.advance(60);
    let why = running.check(new.token(&claims()).unwrap()).unwrap_err();
    assert!(why.contains("key 'new' is unknown"), "{why}");
    assert_eq!(provider.fetches(), 2);
    assert!(running.check(old.token(&claims()).unwrap()).is_ok());
    provider.publish(&[&old, &new]);
    running.clock.advance(60);
    assert!(running.check(new.token(&claims()).unwrap()).is_ok());
}

#[test]
fn endless_and_invalid_key_sets_change_nothing() {
    let (old, new) = (TokenKey::new("old").unwrap(), TokenKey::new("new").unwrap());
    let provider = OidcProvider::start(&[&old]).unwrap();
    let running = Running::start(&provider);
    assert!(running.check(old.token(&claims()).unwrap()).is_ok());
    let breakages: [&dyn Fn(); 4] = [
        &|| provider.publish_endless(),
        &|| provider.publish_bytes(b"{".repeat(1000)),
        &|| provider.publish_bytes(b"{\"keys\": []}".to_vec()),
        &|| provider.publish_bytes(vec![b' '; 1 << 20]),
    ];
    for (n, break_keys) in breakages.iter().enumerate() {
        break_keys();
        running.clock.advance(100);
        assert!(running.check(new.token(&claims()).unwrap()).is_err());
        assert_eq!(provider.fetches(), n + 2);
        assert!(running.check(old.token(&claims()).unwrap()).is_ok());
    }
}

impl Running {
    fn start_http(server: &PasswordServer, is_post: bool, cache_ttl: Duration) -> Running {
        let entry = BackendEntry {
            authn: Some(BackendKind::Http),
            authz: Some(BackendKind::Internal),
        };
        let settings = BackendSettings {
            entries: [(1, entry)].into(),
            http: HttpSettings {
                user_path: server.url(),
                is_post,
                ..HttpSettings::default()
            },
            cache_ttl,
            ..BackendSettings::default()
        };
        assert_eq!(settings.check(), [""; 0]);
        let clock = TestClock::default();
        let service = IdentityService::start(&settings, Arc::new(clock.clone()), [7; 32]);
        let service = service.unwrap();
        Running { service, clock }
    }

    fn log_in(&self, user: &str, password: &[u8]) -> Answer {
        let (answer, answers) = channel();
        self.service.identify(IdentityRequest {
            backend: 0,
            user: user.to_owned(),
            password: password.to_vec(),
            reply: Box::new(move |result| answer.send(result).unwrap()),
        });
        answers.recv().unwrap()
    }
}

#[test]
fn http_server_checks_passwords_by_query_or_form() {
    for is_post in [false, true] {
        let server = PasswordServer::start("username=bob&password=a%26b", "allow monitoring");
        let server = server.unwrap();
        let running = Running::start_http(&server, is_post, Duration::ZERO);
        let identity = running.log_in("bob", b"a&b").unwrap();
        assert_eq!((&*identity.user, identity.expires_at), ("bob", None));
        assert_eq!(identity.tags, ["monitoring".into()]);
        let why = running.log_in("bob", b"wrong").unwrap_err();
        assert_eq!(why, "http: the server denies the login");
        for (user, password) in [("", &b"a&b"[..]), ("bob", &[0xff]), ("bob", &[b'x'; 5000])] {
            assert!(running.log_in(user, password).is_err());
        }
        let requests = server.requests();
        assert_eq!(requests.len(), 2, "invalid credentials are not asked about");
        let has_password = requests.iter().any(|request| request.contains("wrong"));
        assert_eq!(has_password, !is_post);
    }
}

#[test]
fn allowed_http_logins_are_cached_for_their_time() {
    let server = PasswordServer::start("username=bob&password=p", "allow").unwrap();
    let running = Running::start_http(&server, true, Duration::from_secs(15));
    for _ in 0..5 {
        assert!(running.log_in("bob", b"p").is_ok());
        assert!(running.log_in("bob", b"q").is_err());
    }
    assert_eq!(server.requests().len(), 1 + 5, "refusals are not kept");
    running.clock.advance(15);
    assert!(running.log_in("bob", b"p").is_ok());
    assert_eq!(server.requests().len(), 7);
}

#[test]
fn unreachable_http_server_refuses_logins() {
    let server = PasswordServer::start("", "").unwrap();
    let mut running = Running::start_http(&server, false, Duration::ZERO);
    assert!(running.log_in("bob", b"p").is_err());
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = gone.local_addr().unwrap();
    drop(gone);
    let mut settings = BackendSettings::default();
    let entry = BackendEntry {
        authn: Some(BackendKind::Http),
        authz: Some(BackendKind::Internal),
    };
    settings.entries = [(1, entry)].into();
    settings.http.user_path = format!("http://{address}/");
    let clock = Arc::new(running.clock.clone());
    running.service = IdentityService::start(&settings, clock, [7; 32]).unwrap();
    let why = running.log_in("bob", b"secret").unwrap_err();
    assert!(why.starts_with("http: the server cannot be asked"), "{why}");
    assert!(!why.contains("secret"));
}

#[test]
fn urls_need_tls_or_loopback() {
    for safe in [
        "https://a/b",
        "http://localhost:1/x",
        "http://127.0.0.1",
        "http://[::1]:80/",
    ] {
        assert!(is_safe_url(safe), "{safe}");
    }
    for unsafe_url in [
        "",
        "a",
        "http://a",
        "http://localhost.example.com",
        "http://127.0.0.1.example.com/",
        "ftp://localhost",
        "https://",
        "http://localhost@evil/",
        "http://localhost:1@evil/",
        "https://a b",
    ] {
        assert!(!is_safe_url(unsafe_url), "{unsafe_url}");
    }
}

#[test]
fn contradictory_settings_are_reported() {
    let entry = |authn, authz| BackendEntry { authn, authz };
    let (internal, oauth2) = (Some(BackendKind::Internal), Some(BackendKind::OAuth2));
    let mut settings = BackendSettings::default();
    assert!(settings.has_internal() && !settings.has_external());
    assert!(settings.check().is_empty());
    settings.entries = [(1, entry(internal, oauth2)), (2, entry(None, oauth2))].into();
    assert_eq!(settings.check().len(), 2);
    settings.entries = [(1, entry(oauth2, internal)), (2, entry(internal, internal))].into();
    assert_eq!(settings.check().len(), 2, "no resource server and no keys");
    settings
        .entries
        .insert(3, entry(Some(BackendKind::Http), Some(BackendKind::Http)));
    assert_eq!(
        settings.check().len(),
        4,
        "no permissions over HTTP, and no URL"
    );
    settings.http.user_path = "http://localhost/user".to_owned();
    settings
        .entries
        .insert(3, entry(Some(BackendKind::Http), internal));
    assert_eq!(settings.check().len(), 2);
    settings.tokens = self::settings();
    settings.provider.issuer = "https://a".to_owned();
    assert!(settings.check().is_empty());
    assert!(settings.has_internal() && settings.has_external());
}

/// The sign-in of the web UI at a provider, with these settings.
fn web_login(provider: &OidcProvider, settings: WebLoginSettings) -> (Arc<WebLogin>, TestClock) {
    let settings = BackendSettings {
        web_login: settings,
        ..token_backend(format!("{}/", provider.issuer()))
    };
    assert_eq!(settings.check(), [""; 0]);
    let clock = TestClock::default();
    let service = IdentityService::start(&settings, Arc::new(clock.clone()), [7; 32]).unwrap();
    (service.web_login().unwrap().clone(), clock)
}

fn web_client(secret: &str) -> WebLoginSettings {
    WebLoginSettings {
        is_enabled: true,
        client_id: "web ui".to_owned(),
        client_secret: secret.to_owned(),
        ..WebLoginSettings::default()
    }
}

#[test]
fn code_is_exchanged_for_tokens_and_refreshed() {
    let key = TokenKey::new("k1").unwrap();
    let provider = OidcProvider::start(&[&key]).unwrap();
    let (web, _) = web_login(&provider, web_client(""));
    let endpoints = web.endpoints().unwrap();
    assert_eq!(
        (
            &endpoints.authorization_endpoint,
            &endpoints.end_session_endpoint
        ),
        (&format!("{}/authorize", provider.issuer()), &None)
    );
    let answer = json!({"access_token": "a", "refresh_token": "r", "expires_in": 60, "token_type": "Bearer"});
    provider.answer_tokens(200, answer);
    let code = TokenGrant::Code {
        code: "c&1".to_owned(),
        verifier: "v".to_owned(),
        redirect_uri: "https://mq.example/".to_owned(),
    };
    let tokens = web.request_tokens(&code).ok().unwrap();
    assert_eq!(
        (
            &*tokens.access_token,
            tokens.refresh_token.as_deref(),
            tokens.id_token,
            tokens.expires_in
        ),
        ("a", Some("r"), None, Some(60))
    );
    let (secret_web, _) = web_login(&provider, web_client("s 1"));
    assert!(
        secret_web
            .request_tokens(&TokenGrant::Refresh("r".to_owned()))
            .is_ok()
    );
    assert_eq!(
        provider.token_requests(),
        [
            "client_id=web+ui&grant_type=authorization_code&code=c%261&code_verifier=v&\
             redirect_uri=https%3A%2F%2Fmq.example%2F",
            "client_id=web+ui&client_secret=s+1&grant_type=refresh_token&refresh_token=r",
        ]
    );
}

#[test]
fn refused_grant_and_unusable_provider_are_told_apart() {
    let key = TokenKey::new("k1").unwrap();
    let provider = OidcProvider::start(&[&key]).unwrap();
    let (web, _) = web_login(&provider, web_client("hidden"));
    let ask = || {
        web.request_tokens(&TokenGrant::Refresh("r".to_owned()))
            .err()
            .unwrap()
    };
    provider.answer_tokens(400, json!({"error": "invalid_grant"}));
    assert_eq!(ask(), TokenGrantError::Refused("invalid_grant".to_owned()));
    for (status, body, part) in [
        (500, json!({}), "status 500"),
        (302, json!({}), "status 302"),
        (
            200,
            json!({"token_type": "Bearer"}),
            "`access_token` is missing",
        ),
        (200, json!("hidden"), "not a JSON object"),
    ] {
        provider.answer_tokens(status, body);
        match ask() {
            TokenGrantError::Unavailable(why) => {
                assert!(why.contains(part) && !why.contains("hidden"), "{why}");
            }
            refused => panic!("{refused:?}"),
        }
    }
}

#[test]
fn provider_that_is_down_is_not_asked_at_every_request() {
    let key = TokenKey::new("k1").unwrap();
    let provider = OidcProvider::start(&[&key]).unwrap();
    let mut settings = ProviderSettings {
        issuer: format!("{}/other", provider.issuer()),
        ..ProviderSettings::default()
    };
    let clock = TestClock::default();
    let web = |settings: &ProviderSettings| {
        crate::web_login::WebLogin::new(&web_client(""), settings, Arc::new(clock.clone())).unwrap()
    };
    let down = web(&settings);
    assert_eq!(down.known_endpoints(), None);
    let why = down.endpoints().unwrap_err();
    assert!(
        why.contains("/other/.well-known/openid-configuration: status 503"),
        "{why}"
    );
    assert_eq!(down.known_endpoints(), Some(Err(why.clone())));
    assert_eq!(down.endpoints().unwrap_err(), why);
    clock.advance(5);
    assert_eq!(down.known_endpoints(), None);
    settings.issuer = provider.issuer();
    let up = web(&settings);
    let known = up.endpoints().unwrap();
    assert!(Arc::ptr_eq(&known, &up.endpoints().unwrap()));
    clock.advance(3601);
    assert!(!Arc::ptr_eq(&known, &up.endpoints().unwrap()));
}

#[test]
fn sign_in_of_the_web_ui_needs_provider_and_client() {
    let settings = BackendSettings {
        web_login: WebLoginSettings {
            is_enabled: true,
            ..WebLoginSettings::default()
        },
        ..BackendSettings::default()
    };
    assert_eq!(
        settings.check(),
        [
            "`management.oauth_enabled` needs an entry `auth_backends.N = oauth2`",
            "`management.oauth_enabled` needs `auth_oauth2.issuer`",
            "`management.oauth_enabled` needs `management.oauth_client_id`",
        ]
    );
}
