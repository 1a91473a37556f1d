// HTTP API client with the credentials of the signed-in user.

const KEY = 'posthorn.authorization';

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
export function createClient({ fetch, storage, base = 'api/' }) {
  let authorization = null;
  const endListeners = new Set();
  const changeListeners = new Set();
  const deletionListeners = new Set();

  const setAuthorization = (value) => {
    authorization = value;
    try {
      if (value === null) storage?.removeItem(KEY);
      else storage?.setItem(KEY, value);
    } catch {
      // Storage is disabled or full: the credentials last until the page is closed.
    }
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
    let parsed = null;
    try {
      parsed = text === '' ? null : JSON.parse(text);
    } catch {
      // The response is not JSON: a proxy sent it, not the node.
    }
    if (response.ok) return parsed;
    throw new ApiError(response.status, reasonOf(response.status, parsed), parsed);
  };

  /** Like `send`. Signs the user out if the credentials are no longer valid. */
  const request = async (method, path, options) => {
    try {
      const result = await send(method, path, options);
      if (method !== 'GET') for (const listener of changeListeners) listener();
      return result;
    } catch (error) {
      if (error.status === 401 && error.reason === LOGIN_FAILED && authorization !== null) {
        setAuthorization(null);
        for (const listener of endListeners) listener('Your user name or password is no longer valid.');
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
    /** The user who signed in before the page was reloaded, or null. */
    async resume() {
      try {
        authorization = storage?.getItem(KEY) ?? null;
      } catch {
        authorization = null;
      }
      if (authorization === null) return null;
      try {
        return await send('GET', 'whoami');
      } catch (error) {
        if (error.status === 401) {
          setAuthorization(null);
          return null;
        }
        throw error;
      }
    },
    signOut() {
      setAuthorization(null);
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
