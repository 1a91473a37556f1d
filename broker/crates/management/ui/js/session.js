// State shared by the whole page: API client, notices, pending question and refresh interval.
import { useEffect, useRef, useState } from './dom.js';
import { createClient } from './client.js';

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
let lastId = 0;

export function notify(kind, text) {
  lastId += 1;
  notices.set([...notices.get(), { id: lastId, kind, text }].slice(-MAX_NOTICES));
}

export const dismiss = (id) => notices.set(notices.get().filter((notice) => notice.id !== id));

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

/**
 * Data of an API path, refreshed periodically while the page is visible, and after each change. `path` null: no request. `once`: it is
 * not refreshed. On an error the previous data are kept.
 */
export function useData(path, { once = false } = {}) {
  const every = interval.use();
  const [state, setState] = useState({ path: null, data: null, error: null });
  const again = useRef(() => {});
  useEffect(() => {
    if (path === null) return undefined;
    const stop = new AbortController();
    let timer = null;
    let isLoading = false;
    let reloadPending = false;
    const load = async () => {
      if (isLoading) {
        reloadPending = true;
        return;
      }
      isLoading = true;
      clearTimeout(timer);
      if (!document.hidden || reloadPending) {
        reloadPending = false;
        try {
          const data = await client.get(path, { signal: stop.signal });
          if (!stop.signal.aborted) setState({ path, data, error: null });
        } catch (error) {
          if (stop.signal.aborted) return;
          setState((before) => ({ path, data: before.path === path ? before.data : null, error }));
        }
      }
      isLoading = false;
      if (reloadPending) load();
      else if (every > 0 && !once) timer = setTimeout(load, every);
    };
    again.current = load;
    load();
    const removeListener = once ? () => {} : client.onChange(load);
    return () => {
      stop.abort();
      clearTimeout(timer);
      removeListener();
    };
  }, [path, every, once]);
  const isCurrent = state.path === path;
  return { data: isCurrent ? state.data : null, error: isCurrent ? state.error : null, again: () => again.current() };
}
