// State shared by the whole page: API client, notices, pending question and refresh interval.
import { useEffect, useRef, useState } from './dom.js';
import { createClient, isPartOf } from './client.js';

const storage = () => {
  try {
    return window.sessionStorage;
  } catch {
    return null;
  }
};

export const client = createClient({ fetch: (...given) => fetch(...given), storage: storage() });

/** A value that components share. */
export function shared(first) {
  let value = first;
  const listeners = new Set();
  return {
    get: () => value,
    set(next) {
      value = next;
      for (const listener of listeners) listener(next);
    },
    use() {
      const [current, setCurrent] = useState(value);
      useEffect(() => {
        listeners.add(setCurrent);
        setCurrent(value);
        return () => listeners.delete(setCurrent);
      }, []);
      return current;
    },
  };
}

/** Refresh interval in milliseconds; 0: no refresh. */
export const interval = shared(5000);

/** Notices on top of the page: [{id, kind, text}]. */
export const notices = shared([]);

const MAX_NOTICES = 5;
/** A notice of success disappears after this time in milliseconds; a problem stays until it is dismissed. */
const NOTICE_TIME = 10_000;
let lastId = 0;

export const dismiss = (id) => notices.set(notices.get().filter((notice) => notice.id !== id));

export function notify(kind, text) {
  lastId += 1;
  const id = lastId;
  notices.set([...notices.get(), { id, kind, text }].slice(-MAX_NOTICES));
  if (kind === 'good') setTimeout(() => dismiss(id), NOTICE_TIME);
}

/** The pending question, or null: {title, text, verb, answer}. */
export const question = shared(null);

/** Asks for confirmation before an irreversible action. */
export function confirmed({ title, text, verb }) {
  return new Promise((resolve) => {
    const answer = (yes) => {
      question.set(null);
      resolve(yes);
    };
    question.set({ title, text, verb, answer });
  });
}

/** Milliseconds from a change by the user to the next request for data. */
const CHANGE_DELAY = 100;

/** Returns true for paths that differ at most in their query. */
const isSameObject = (a, b) => a !== null && b !== null && a.split('?')[0] === b.split('?')[0];

/**
 * Data of an API path, refreshed periodically while the page is visible, and after each change. `path` null: no request. `once`: it is
 * not refreshed. The previous data are kept on an error, and while a request with another query is pending.
 */
export function useData(path, { once = false } = {}) {
  const every = interval.use();
  const [state, setState] = useState({ path: null, data: null, error: null });
  const again = useRef(() => {});
  useEffect(() => {
    if (path === null) return undefined;
    let request = new AbortController();
    let timer = null;
    let isLoading = false;
    let reloadPending = false;
    let isLeft = false;
    let isDeleted = false;
    const load = async () => {
      if (isDeleted) return;
      if (isLoading) {
        reloadPending = true;
        return;
      }
      isLoading = true;
      clearTimeout(timer);
      if (!document.hidden || reloadPending) {
        reloadPending = false;
        request = new AbortController();
        const { signal } = request;
        try {
          const data = await client.get(path, { signal });
          if (!signal.aborted) setState({ path, data, error: null });
        } catch (error) {
          if (!signal.aborted) setState((before) => ({ path, data: isSameObject(before.path, path) ? before.data : null, error }));
        }
      }
      isLoading = false;
      if (isLeft) return;
      if (reloadPending) load();
      else if (every > 0 && !once) timer = setTimeout(load, every);
    };
    again.current = load;
    load();
    let reload = null;
    const onChange = () => {
      clearTimeout(reload);
      reload = setTimeout(load, CHANGE_DELAY);
    };
    const removeListener = once ? () => {} : client.onChange(onChange);
    // The page is left when the object is deleted. Meanwhile the object is not requested.
    const removeDeletionListener = client.onDeletion((deleted, state) => {
      if (!isPartOf(path, deleted)) return;
      isDeleted = state === 'begun';
      if (isDeleted) request.abort();
      else load();
    });
    return () => {
      isLeft = true;
      request.abort();
      clearTimeout(timer);
      clearTimeout(reload);
      removeListener();
      removeDeletionListener();
    };
  }, [path, every, once]);
  const isCurrent = isSameObject(state.path, path);
  return { data: isCurrent ? state.data : null, error: isCurrent ? state.error : null, again: () => again.current() };
}
