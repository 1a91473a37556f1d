// Checks of the scenario: each a function, run in order, each reported on one line.
'use strict';

const { execFileSync } = require('node:child_process');
const path = require('node:path');

const PATIENCE = 60_000; // ms that one wait may take
const registered = [];

/** Registers a check; `run` runs it. */
function check(name, body) {
  registered.push({ name, body });
}

/** Runs the checks whose names hold one of the words on the command line, or all; exits with 1 when one failed. */
async function run(suite) {
  const words = process.argv.slice(2);
  let passed = 0;
  let failed = 0;
  for (const { name, body } of registered) {
    if (words.length > 0 && !words.some((word) => name.includes(word))) continue;
    const began = performance.now();
    try {
      await within(2 * PATIENCE, body(), 'the check did not end in time');
      passed++;
      console.log(`ok     ${name} (${((performance.now() - began) / 1000).toFixed(1)} s)`);
    } catch (error) {
      failed++;
      console.log(`FAILED ${name}\n${error.stack ?? error}`);
    }
  }
  console.log(`${suite}: ${passed} passed${failed > 0 ? `, ${failed} failed` : ''}`);
  process.exit(failed > 0 || passed === 0 ? 1 : 0);
}

/** The promise's value, or an error after so many ms. */
function within(ms, promise, what) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(what)), ms);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** Waits until the condition, which may be asynchronous, holds; its value. */
async function until(condition, what) {
  const deadline = performance.now() + PATIENCE;
  for (;;) {
    const value = await condition();
    if (value) return value;
    if (performance.now() > deadline) throw new Error(`waited in vain: ${what}`);
    await new Promise((resume) => setTimeout(resume, 10));
  }
}

/** `node start|stop|kill NAME`. */
function node(...args) {
  execFileSync(process.env.NODE, args, { stdio: 'inherit' });
}

/** `cluster start`, `cluster node NAME`. */
function cluster(...args) {
  execFileSync(path.join(path.dirname(process.env.NODE), 'cluster'), args, { stdio: 'inherit' });
}

module.exports = { check, run, until, within, node, cluster, PATIENCE };
