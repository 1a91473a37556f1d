// The one client of this page, what it shows, and how often it looks.
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

/** A value that parts of the page share. */
export function shared(first) {
  let value = first;
  const told = new Set();
  return {
    get: () => value,
    set(next) {
      value = next;
      for (const tell of told) tell(next);
    },
    use() {
      const [seen, see] = useState(value);
      useEffect(() => {
        told.add(see);
        see(value);
        return () => told.delete(see);
      }, []);
      return seen;
    },
  };
}

/** Milliseconds between two looks; 0: only when asked. */
export const interval = shared(5000);

/** What went well or wrong, to be told on top of the page: [{id, kind, text}]. */
export const notices = shared([]);

const MOST_NOTICES = 5;
let numbered = 0;

export function notify(kind, text) {
  numbered += 1;
  notices.set([...notices.get(), { id: numbered, kind, text }].slice(-MOST_NOTICES));
}

export const dismiss = (id) => notices.set(notices.get().filter((notice) => notice.id !== id));

/** A question that waits for an answer, or null: {title, text, verb, answer}. */
export const question = shared(null);

/** Asks before something is done that cannot be taken back. */
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
 * What the API has at a path, looked at again and again while the page is seen, and after each change. `path` null: nothing. `once`: it is
 * not looked at again. An error leaves what was seen before.
 */
export function useData(path, { once = false } = {}) {
  const every = interval.use();
  const [seen, see] = useState({ path: null, data: null, error: null });
  const again = useRef(() => {});
  useEffect(() => {
    if (path === null) return undefined;
    const stop = new AbortController();
    let timer = null;
    let looking = false;
    let anew = false;
    const look = async () => {
      if (looking) {
        anew = true;
        return;
      }
      looking = true;
      clearTimeout(timer);
      if (!document.hidden || anew) {
        anew = false;
        try {
          const data = await client.get(path, { signal: stop.signal });
          if (!stop.signal.aborted) see({ path, data, error: null });
        } catch (error) {
          if (stop.signal.aborted) return;
          see((before) => ({ path, data: before.path === path ? before.data : null, error }));
        }
      }
      looking = false;
      if (anew) look();
      else if (every > 0 && !once) timer = setTimeout(look, every);
    };
    again.current = look;
    look();
    const unhear = once ? () => {} : client.onChange(look);
    return () => {
      stop.abort();
      clearTimeout(timer);
      unhear();
    };
  }, [path, every, once]);
  const current = seen.path === path;
  return { data: current ? seen.data : null, error: current ? seen.error : null, again: () => again.current() };
}
