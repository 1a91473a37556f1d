// Sign-in at an OpenID provider: the authorization code flow with PKCE (RFC 7636). The node exchanges the code for tokens.
import { ApiError, parsed } from './client.js';

const KEY = 'posthorn.sign-in';

const base64url = (bytes) => btoa(String.fromCharCode(...bytes)).replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '');

/** 256 random bits as text. */
const random = (crypto) => base64url(crypto.getRandomValues(new Uint8Array(32)));

/** The URL to which the provider sends the browser back. */
const ownUrl = ({ origin, pathname }) => origin + pathname;

function withParameters(address, parameters) {
  const url = new URL(address);
  for (const [name, value] of Object.entries(parameters)) url.searchParams.set(name, value);
  return url.href;
}

/**
 * Sends the browser to the provider. `methods` is the response of `auth`. `storage` keeps the verifier until the provider sends the
 * browser back.
 */
export async function leave(methods, { location, storage, crypto }) {
  const endpoint = methods.oauth_authorization_endpoint;
  if (!endpoint) throw new ApiError(0, 'The identity provider does not respond. Try again in a moment.');
  if (!crypto.subtle) throw new ApiError(0, 'Browsers support this sign-in only on pages with HTTPS and on localhost.');
  const [verifier, state, nonce] = [random(crypto), random(crypto), random(crypto)];
  const digest = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(verifier));
  try {
    storage.setItem(KEY, JSON.stringify({ verifier, state, nonce, hash: location.hash }));
  } catch {
    throw new ApiError(0, 'This sign-in needs the session storage of the browser, which is disabled.');
  }
  location.assign(
    withParameters(endpoint, {
      response_type: 'code',
      client_id: methods.oauth_client_id,
      redirect_uri: ownUrl(location),
      scope: methods.oauth_scopes,
      state,
      nonce,
      code_challenge: base64url(new Uint8Array(digest)),
      code_challenge_method: 'S256',
    }),
  );
}

/**
 * The grant with which the provider has sent the browser back, and the nonce of its id token; or null. Removes the provider's parameters
 * from the address, and returns to the page that was open before `leave`.
 */
export function returned({ location, storage, history }) {
  const query = new URLSearchParams(location.search);
  const [code, state, error] = ['code', 'state', 'error'].map((name) => query.get(name));
  if (code === null && error === null) return null;
  let pending = null;
  try {
    pending = parsed(storage.getItem(KEY));
    storage.removeItem(KEY);
  } catch {
    // Without storage no sign-in is pending.
  }
  history.replaceState(null, '', location.pathname + (pending?.hash ?? ''));
  // A page of another site may have made the address (RFC 6749, section 10.12). None of its text is shown.
  if (!pending || pending.state !== state) throw new ApiError(0, 'This sign-in was not started in this tab. Sign in again.');
  if (error !== null) throw new ApiError(0, `The identity provider refuses the sign-in: ${query.get('error_description') ?? error}`);
  return { grant: { code, code_verifier: pending.verifier, redirect_uri: ownUrl(location) }, nonce: pending.nonce };
}

/** The provider's page that ends the session of a user, or null. `idToken` may be null. */
export function endOfSession(methods, idToken, { location }) {
  const endpoint = methods.oauth_end_session_endpoint;
  if (!endpoint) return null;
  return withParameters(endpoint, {
    client_id: methods.oauth_client_id,
    post_logout_redirect_uri: ownUrl(location),
    ...(idToken ? { id_token_hint: idToken } : {}),
  });
}
