// Places within the page: what stands behind `#` in its address, with RabbitMQ's names.

/** `#/queues/%2F/a%20b?x=1` is ['queues', '/', 'a b']; null when it cannot be read. */
export function parse(hash) {
  const text = hash.replace(/^#\/?/, '').replace(/\?.*$/, '').replace(/\/$/, '');
  if (text === '') return [];
  try {
    return text.split('/').map(decodeURIComponent);
  } catch {
    return null;
  }
}

/** The address of a place. */
export const to = (...elements) => `#/${elements.map(encodeURIComponent).join('/')}`;

/**
 * The first of `table` that fits: rows of pattern and value, where `{}` in a pattern stands for any element. RabbitMQ's pages of
 * administrators are also known below `admin`.
 */
export function find(table, elements) {
  if (elements === null) return null;
  const place = elements[0] === 'admin' && elements.length > 1 ? elements.slice(1) : elements;
  for (const [pattern, value] of table) {
    const wanted = pattern === '' ? [] : pattern.split('/');
    if (wanted.length !== place.length) continue;
    if (wanted.every((element, at) => element === '{}' || element === place[at])) {
      return { value, given: place.filter((_, at) => wanted[at] === '{}') };
    }
  }
  return null;
}
