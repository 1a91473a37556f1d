// HTTP API client with the credentials of the signed-in user.

const KEY = 'posthorn.authorization';
/** The refresh token and the id token of an OpenID provider, and the time at which the access token ends. */
const TOKENS_KEY = 'posthorn.tokens';
/** Tokens are refreshed this many milliseconds before they end. */
const REFRESH_EARLY = 30_000;

/** A failed request: `status` (0: no response), `reason` as readable text, `body` as received. */
export class ApiError extends Error {
  constructor(status, reason, body = null) {
    super(reason);
    this.status = status;
    this.reason = reason;
    this.body = body;
  }
}

/** Encodes one element of a path. Browsers remove `.` and `..` from a path even if they are percent-encoded. */
export function element(name) {
  if (name === '' || name === '.' || name === '..') {
    throw new ApiError(0, `A browser cannot request an object named "${name}". Use posthorn ctl instead.`);
  }
  return encodeURIComponent(name);
}

/** `path('queues', '/', 'a b')` is `queues/%2F/a%20b`. */
export const path = (...elements) => elements.map(element).join('/');

/** Returns true for the path of an object that no longer exists after the deletion of `deleted`: itself, or something in it. */
export function isPartOf(path, deleted) {
  const plain = (of) => of.split('?')[0];
  return plain(path) === plain(deleted) || plain(path).startsWith(`${plain(deleted)}/`);
}

/** The value of a JSON text, or null for any other text. */
export function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** Appends a query string. Values that are undefined, null, false or '' are omitted. */
export function withQuery(path, query) {
  const parameters = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== false && value !== '');
  const text = new URLSearchParams(parameters).toString();
  return text === '' ? path : `${path}?${text}`;
}

/** Wraps a list without pagination as a single page. */
export function pageOf(answer) {
  if (!Array.isArray(answer)) return answer;
  return { items: answer, item_count: answer.length, filtered_count: answer.length, total_count: answer.length, page: 1, page_count: 1 };
}

/**
 * Checks that an id token is of the sign-in with this nonce (OpenID Connect Core 1.0, section 3.1.3.7). Its signature need not be checked:
 * the node got it from the provider over TLS, and the access token authenticates the user. An encrypted token cannot be read.
 */
function checkNonce(idToken, nonce) {
  const parts = idToken.split('.');
  if (parts.length !== 3) return;
  let claims = null;
  try {
    claims = parsed(atob(parts[1].replaceAll('-', '+').replaceAll('_', '/')));
  } catch {
    // Not base64.
  }
  if (claims?.nonce !== nonce) throw new ApiError(0, 'The identity provider returned the id token of another sign-in. Sign in again.');
}

/** Basic credentials in UTF-8 (RFC 7617). */
export function basic(name, password) {
  const bytes = new TextEncoder().encode(`${name}:${password}`);
  return `Basic ${btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(''))}`;
}

/** The readable text for the API's reason `Not_Authorized`. */
const LOGIN_FAILED = 'Login failed';

/** The reason in an error response. */
function reasonOf(status, body) {
  if (body?.reason === 'Not_Authorized') return LOGIN_FAILED;
  if (Array.isArray(body?.reason)) return body.reason.map((part) => (typeof part === 'string' ? part : JSON.stringify(part))).join(': ');
  if (typeof body?.reason === 'string' && body.reason !== '') return body.reason;
  return `The node responded with status ${status}.`;
}

/**
 * `fetch` is the browser's; `storage` keeps the Authorization header until the tab is closed, or is null; `base` is the URL of the API.
 */
export function createClient({ fetch, storage, base = 'api/', now = Date.now }) {
  let authorization = null;
  /** {refresh, id, end}, or null for a user with a password. */
  let tokens = null;
  let refreshing = null;
  const endListeners = new Set();
  const changeListeners = new Set();
  const deletionListeners = new Set();

  const store = (key, value) => {
    try {
      if (value === null) storage?.removeItem(key);
      else storage?.setItem(key, value);
    } catch {
      // Storage is disabled or full: the credentials last until the page is closed.
    }
  };
  const stored = (key) => {
    try {
      return storage?.getItem(key) ?? null;
    } catch {
      return null;
    }
  };
  const setAuthorization = (value, newTokens = null) => {
    authorization = value;
    tokens = newTokens;
    store(KEY, value);
    store(TOKENS_KEY, tokens === null ? null : JSON.stringify(tokens));
  };
  const endSession = (why) => {
    setAuthorization(null);
    for (const listener of endListeners) listener(why);
  };

  const send = async (method, path, { body, headers = {}, as = authorization, signal } = {}) => {
    const payload = body === undefined ? {} : { body: typeof body === 'string' ? body : JSON.stringify(body) };
    let response, text;
    try {
      response = await fetch(base + path, {
        method,
        // Sends no browser credentials, and prevents the browser's password prompt.
        credentials: 'omit',
        cache: 'no-store',
        headers: { ...headers, ...(as === null ? {} : { Authorization: as }), ...(body === undefined ? {} : { 'Content-Type': 'application/json' }) },
        signal,
        ...payload,
      });
      text = await response.text();
    } catch (error) {
      if (error?.name === 'AbortError') throw error;
      throw new ApiError(0, 'The node does not respond.');
    }
    // A response that is not JSON is from a proxy, not from the node.
    const content = parsed(text);
    if (response.ok) return content;
    throw new ApiError(response.status, reasonOf(response.status, content), content);
  };

  /** Requests tokens from the provider. Without a new refresh token or id token the last one stays in use. */
  const requestTokens = async (grant, nonce = null) => {
    const before = tokens;
    const given = await send('POST', 'oauth/token', { body: grant, as: null });
    if (tokens !== before) throw new ApiError(0, 'The user has signed out.');
    if (nonce !== null && given.id_token) checkNonce(given.id_token, nonce);
    const end = given.expires_in ? now() + given.expires_in * 1000 : null;
    setAuthorization(`Bearer ${given.access_token}`, { refresh: given.refresh_token ?? tokens?.refresh ?? null, id: given.id_token ?? tokens?.id ?? null, end });
  };

  /** Refreshes the access token if it ends soon. Requests at the same time wait for one refresh. */
  const refresh = async () => {
    if (!tokens?.refresh || tokens.end === null || tokens.end - now() > REFRESH_EARLY) return;
    const before = tokens;
    refreshing ??= requestTokens({ refresh_token: tokens.refresh }).finally(() => {
      refreshing = null;
    });
    try {
      await refreshing;
    } catch (error) {
      // The user has signed out, or another request has ended the session.
      if (tokens !== before) throw error;
      if (error.status >= 400 && error.status < 500) {
        endSession('Your session at the identity provider has ended.');
        throw error;
      }
      // The node or the provider may respond again later, even after the end of the access token.
      if (tokens.end <= now()) throw error;
    }
  };

  /** Like `send`. Signs the user out if the credentials are no longer valid. */
  const request = async (method, path, options) => {
    await refresh();
    try {
      const result = await send(method, path, options);
      if (method !== 'GET') for (const listener of changeListeners) listener();
      return result;
    } catch (error) {
      if (error.status === 401 && error.reason === LOGIN_FAILED && authorization !== null) {
        endSession(tokens === null ? 'Your user name or password is no longer valid.' : 'Your session has ended.');
      }
      throw error;
    }
  };

  const remove = async (path, options) => {
    const tell = (state) => {
      for (const listener of deletionListeners) listener(path, state);
    };
    tell('begun');
    try {
      return await request('DELETE', path, options);
    } catch (error) {
      tell('failed');
      throw error;
    }
  };

  return {
    /** Signs a user in and returns it. The credentials are stored only if they are valid. */
    async signIn(name, password) {
      const as = basic(name, password);
      const user = await send('GET', 'whoami', { as });
      setAuthorization(as);
      return user;
    },
    /** The sign-in methods of the node. */
    methods: () => send('GET', 'auth', { as: null }),
    /** Signs a user in with the grant of the identity provider, and returns the user. `nonce` is that of the request for the grant. */
    async signInWith({ grant, nonce }) {
      setAuthorization(null);
      await requestTokens(grant, nonce);
      try {
        return await send('GET', 'whoami');
      } catch (error) {
        setAuthorization(null);
        if (error.status !== 401) throw error;
        throw new ApiError(401, `The node refuses the token of the identity provider: ${error.reason}. Its log has the reason.`);
      }
    },
    /** The user who signed in before the page was reloaded, or null. */
    async resume() {
      authorization = stored(KEY);
      if (authorization === null) return null;
      try {
        tokens = parsed(stored(TOKENS_KEY));
        await refresh();
        return await send('GET', 'whoami');
      } catch (error) {
        if (error.status === 401) {
          setAuthorization(null);
          return null;
        }
        throw error;
      }
    },
    /** Forgets the credentials. Returns the id token of the identity provider, or null. */
    signOut() {
      const id = tokens?.id ?? null;
      setAuthorization(null);
      return id;
    },
    get: (path, options) => request('GET', path, options),
    put: (path, body = {}) => request('PUT', path, { body }),
    post: (path, body = {}) => request('POST', path, { body }),
    delete: remove,
    /** Registers a listener for the loss of valid credentials. Returns a function that removes it. */
    onEnd(listener) {
      endListeners.add(listener);
      return () => endListeners.delete(listener);
    },
    /** Registers `listener(path, state)` for deletions: `begun` before the request, `failed` after an error. Returns a function that removes it. */
    onDeletion(listener) {
      deletionListeners.add(listener);
      return () => deletionListeners.delete(listener);
    },
    /** Registers a listener for requests that may have changed an object. Returns a function that removes it. */
    onChange(listener) {
      changeListeners.add(listener);
      return () => changeListeners.delete(listener);
    },
  };
}

/** The access that a user's tags grant. */
export function rights(user) {
  const tags = Array.isArray(user?.tags) ? user.tags : String(user?.tags ?? '').split(',');
  const has = (tag) => tags.includes(tag);
  const administrator = has('administrator');
  const monitor = administrator || has('monitoring');
  const policymaker = administrator || has('policymaker');
  return { administrator, monitor, policymaker, any: monitor || policymaker || has('management') };
}
