// Payloads of messages: bytes, JSON, and search.

/** The bytes of a payload in a response of the API. */
export function bytesOf({ payload, payload_encoding: encoding }) {
  if (encoding !== 'base64') return new TextEncoder().encode(payload);
  return Uint8Array.from(atob(payload), (character) => character.charCodeAt(0));
}

/** Returns true if the API shortened the payload. */
export const isShortened = (message) => bytesOf(message).length < message.payload_bytes;

/**
 * Indents JSON, or returns null if the text is not an object or array in JSON. Numbers and strings stay as they are written: parsing would
 * change numbers with more digits than JavaScript keeps.
 */
export function indented(text) {
  try {
    const parsed = JSON.parse(text);
    if (typeof parsed !== 'object' || parsed === null) return null;
  } catch {
    return null;
  }
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g);
  let out = '';
  let depth = 0;
  const newLine = () => `\n${'  '.repeat(depth)}`;
  for (const [at, token] of tokens.entries()) {
    if (token === '{' || token === '[') {
      depth += 1;
      out += token;
      if (!'}]'.includes(tokens[at + 1])) out += newLine();
    } else if (token === '}' || token === ']') {
      depth -= 1;
      out += ('{['.includes(tokens[at - 1]) ? '' : newLine()) + token;
    } else if (token === ',') out += token + newLine();
    else out += token === ':' ? ': ' : token;
  }
  return out;
}

/** Bytes as hexadecimal numbers and ASCII characters, 16 on each line. */
export function dump(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const part = [...bytes.subarray(at, at + 16)];
    const hex = part.map((byte) => byte.toString(16).padStart(2, '0')).join(' ');
    const ascii = part.map((byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : '.')).join('');
    lines.push(`${at.toString(16).padStart(6, '0')}  ${hex.padEnd(47)}  ${ascii}`);
  }
  return lines.join('\n');
}

/** Returns true if the payload, the routing key, a property or a header has the text, in upper or lower case. */
export function contains(message, text) {
  if (text === '') return true;
  const payload = message.payload_encoding === 'base64' ? new TextDecoder().decode(bytesOf(message)) : message.payload;
  const all = [payload, message.routing_key, message.exchange, JSON.stringify(message.properties)];
  return all.some((one) => one.toLowerCase().includes(text.toLowerCase()));
}
