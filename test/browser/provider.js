// provider.js PORT READY-FILE: an OpenID provider for the web UI on loopback: authorization code flow with PKCE, refresh tokens that are
// used once, and sign-out. Its page for users has a link to allow and one to deny. `/counts` has the numbers of answered grants.
'use strict';

const crypto = require('node:crypto');
const fs = require('node:fs');
const http = require('node:http');

const [port, readyFile] = process.argv.slice(2);
const issuer = `http://127.0.0.1:${port}`;
const { publicKey, privateKey } = crypto.generateKeyPairSync('ec', { namedCurve: 'P-256' });
const jwk = { ...publicKey.export({ format: 'jwk' }), kid: 'k1', use: 'sig', alg: 'ES256' };
/** Seconds. A little more than the time before the end at which the page refreshes a token. */
const LIFETIME = 31;

const encoded = (value) => Buffer.from(JSON.stringify(value)).toString('base64url');

function signed(claims) {
  const content = `${encoded({ alg: 'ES256', kid: 'k1', typ: 'JWT' })}.${encoded(claims)}`;
  const signature = crypto.sign('sha256', Buffer.from(content), { key: privateKey, dsaEncoding: 'ieee-p1363' });
  return `${content}.${signature.toString('base64url')}`;
}

const codes = new Map();
const refreshTokens = new Set();
const counts = { authorization_code: 0, refresh_token: 0, ended: 0 };

/** Without a nonce the tokens are refreshed ones. */
function tokens(nonce) {
  const now = Math.floor(Date.now() / 1000);
  const refresh = crypto.randomUUID();
  refreshTokens.add(refresh);
  return {
    // It is valid for longer than the page is told, so that a slow machine does not end the session.
    access_token: signed({ sub: 'alice', aud: ['rabbitmq'], exp: now + 600, scope: 'rabbitmq.read:*/* rabbitmq.tag:monitoring' }),
    id_token: signed({ sub: 'alice', aud: ['web-ui'], exp: now + 600, iss: issuer, nonce }),
    refresh_token: refresh,
    expires_in: LIFETIME,
    token_type: 'Bearer',
  };
}

/** The answer to a request for tokens: [status, body]. */
function grant(form) {
  let nonce;
  const refused = (error_description) => [400, { error: 'invalid_grant', error_description }];
  if (form.get('client_id') !== 'web-ui') return [401, { error: 'invalid_client' }];
  switch (form.get('grant_type')) {
    case 'authorization_code': {
      const code = codes.get(form.get('code'));
      codes.delete(form.get('code'));
      if (!code) return refused('the code is unknown or was used');
      const challenge = crypto.createHash('sha256').update(form.get('code_verifier') ?? '').digest('base64url');
      if (challenge !== code.challenge) return refused('the code verifier is wrong');
      if (form.get('redirect_uri') !== code.redirect) return refused('the redirect URI is another one');
      nonce = code.nonce;
      break;
    }
    case 'refresh_token':
      if (!refreshTokens.delete(form.get('refresh_token'))) return refused('the refresh token is unknown or was used');
      break;
    default:
      return [400, { error: 'unsupported_grant_type' }];
  }
  counts[form.get('grant_type')] += 1;
  return [200, tokens(nonce)];
}

const page = (content) => `<!doctype html><html lang="en"><title>Provider</title><link rel="icon" href="data:,"><main><h1>Provider</h1>${content}</main></html>`;

function authorize(query) {
  const [redirect, state] = [query.get('redirect_uri'), query.get('state')];
  if (query.get('response_type') !== 'code' || query.get('code_challenge_method') !== 'S256' || query.get('client_id') !== 'web-ui') return page('<p>Bad request</p>');
  const code = crypto.randomUUID();
  codes.set(code, { challenge: query.get('code_challenge'), nonce: query.get('nonce'), redirect });
  const back = (parameters) => {
    const url = new URL(redirect);
    for (const [name, value] of Object.entries({ ...parameters, state })) url.searchParams.set(name, value);
    return url.href.replaceAll('&', '&amp;');
  };
  return page(`<p><a href="${back({ code })}">Allow</a> <a href="${back({ error: 'access_denied', error_description: 'Alice said no' })}">Deny</a></p>`);
}

const server = http.createServer(async (request, response) => {
  const url = new URL(request.url, issuer);
  const send = (status, body, headers = {}) => {
    const isText = typeof body === 'string';
    response.writeHead(status, { 'Content-Type': isText ? 'text/html; charset=utf-8' : 'application/json', ...headers });
    response.end(isText ? body : JSON.stringify(body));
  };
  switch (url.pathname) {
    case '/.well-known/openid-configuration':
      return send(200, {
        issuer,
        jwks_uri: `${issuer}/keys`,
        authorization_endpoint: `${issuer}/authorize`,
        token_endpoint: `${issuer}/token`,
        end_session_endpoint: `${issuer}/end`,
      });
    case '/keys':
      return send(200, { keys: [jwk] });
    case '/authorize':
      return send(200, authorize(url.searchParams));
    case '/token': {
      let body = '';
      for await (const part of request) body += part;
      return send(...grant(new URLSearchParams(body)));
    }
    case '/end':
      counts.ended += 1;
      return send(302, '', { Location: url.searchParams.get('post_logout_redirect_uri') });
    case '/counts':
      return send(200, counts);
    default:
      return send(404, {});
  }
});
server.listen(Number(port), '127.0.0.1', () => fs.writeFileSync(readyFile, issuer));
