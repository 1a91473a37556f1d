// Requests to the HTTP API in the name of who is signed in.

const KEY = 'posthorn.authorization';

/** An answer that is no success: `status` (0: there was none), `reason` for people, `body` as it came. */
export class Refused extends Error {
  constructor(status, reason, body = null) {
    super(reason);
    this.status = status;
    this.reason = reason;
    this.body = body;
  }
}

/** One element of a path. A browser takes `.` and `..` out of a path, in whatever way they are written. */
export function element(name) {
  if (name === '' || name === '.' || name === '..') {
    throw new Refused(0, `A browser cannot ask for something that is named "${name}": use posthorn ctl.`);
  }
  return encodeURIComponent(name);
}

/** `path('queues', '/', 'a b')` is `queues/%2F/a%20b`. */
export const path = (...elements) => elements.map(element).join('/');

/** The path with a query string of what is neither undefined, null, false nor ''. */
export function withQuery(of, query) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== false && value !== '');
  const text = new URLSearchParams(given).toString();
  return text === '' ? of : `${of}?${text}`;
}

/** A list of the API as a page: one that is not cut into pages is a page by itself. */
export function pageOf(answer) {
  if (!Array.isArray(answer)) return answer;
  return { items: answer, item_count: answer.length, filtered_count: answer.length, total_count: answer.length, page: 1, page_count: 1 };
}

/** RFC 7617 with UTF-8. */
export function basic(name, password) {
  const bytes = new TextEncoder().encode(`${name}:${password}`);
  return `Basic ${btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(''))}`;
}

/** What people read where the API says it in a word of its own. */
const LOGIN_FAILED = 'Login failed';

/** What an answer says went wrong. */
function reasonOf(status, body) {
  if (body?.reason === 'Not_Authorized') return LOGIN_FAILED;
  if (Array.isArray(body?.reason)) return body.reason.map((part) => (typeof part === 'string' ? part : JSON.stringify(part))).join(': ');
  if (typeof body?.reason === 'string' && body.reason !== '') return body.reason;
  return `The node answered with status ${status}.`;
}

/**
 * `fetch` as the browser has it; `storage` keeps the password's header until the tab is closed, or is null; `base` is where the API is.
 */
export function createClient({ fetch, storage, base = 'api/' }) {
  let authorization = null;
  const ended = new Set();
  const changed = new Set();

  const keep = (value) => {
    authorization = value;
    try {
      if (value === null) storage?.removeItem(KEY);
      else storage?.setItem(KEY, value);
    } catch {
      // Storage that is turned off or full: it lasts as long as the page.
    }
  };

  const send = async (method, of, { body, headers = {}, as = authorization, signal } = {}) => {
    const given = body === undefined ? {} : { body: typeof body === 'string' ? body : JSON.stringify(body) };
    let answer, text;
    try {
      answer = await fetch(base + of, {
        method,
        // Nothing that the browser keeps goes along, and it asks for no password itself.
        credentials: 'omit',
        cache: 'no-store',
        headers: { ...headers, ...(as === null ? {} : { Authorization: as }), ...(body === undefined ? {} : { 'Content-Type': 'application/json' }) },
        signal,
        ...given,
      });
      text = await answer.text();
    } catch (error) {
      if (error?.name === 'AbortError') throw error;
      throw new Refused(0, 'The node does not answer.');
    }
    let parsed = null;
    try {
      parsed = text === '' ? null : JSON.parse(text);
    } catch {
      // Something between here and the node answered.
    }
    if (answer.ok) return parsed;
    throw new Refused(answer.status, reasonOf(answer.status, parsed), parsed);
  };

  /** As `send`; who may not come in any more is signed out. */
  const ask = async (method, of, more) => {
    try {
      const answer = await send(method, of, more);
      if (method !== 'GET') for (const tell of changed) tell();
      return answer;
    } catch (error) {
      if (error.status === 401 && error.reason === LOGIN_FAILED && authorization !== null) {
        keep(null);
        for (const tell of ended) tell('Your user or password is not valid any more.');
      }
      throw error;
    }
  };

  return {
    /** Who it is, or an error; the password is kept only when it was right. */
    async signIn(name, password) {
      const as = basic(name, password);
      const user = await send('GET', 'whoami', { as });
      keep(as);
      return user;
    },
    /** Who signed in before the page was loaded anew, or null. */
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
          keep(null);
          return null;
        }
        throw error;
      }
    },
    signOut() {
      keep(null);
    },
    get: (of, more) => ask('GET', of, more),
    put: (of, body = {}) => ask('PUT', of, { body }),
    post: (of, body = {}) => ask('POST', of, { body }),
    delete: (of, more) => ask('DELETE', of, more),
    /** Calls back when the password is not right any more; returns what ends that. */
    onEnd(tell) {
      ended.add(tell);
      return () => ended.delete(tell);
    },
    /** Calls back after each request that may have changed something. */
    onChange(tell) {
      changed.add(tell);
      return () => changed.delete(tell);
    },
  };
}

/** What the tags of a user open. */
export function rights(user) {
  const tags = Array.isArray(user?.tags) ? user.tags : String(user?.tags ?? '').split(',');
  const has = (tag) => tags.includes(tag);
  const administrator = has('administrator');
  const monitor = administrator || has('monitoring');
  const policymaker = administrator || has('policymaker');
  return { administrator, monitor, policymaker, any: monitor || policymaker || has('management') };
}
