// Typical work of Node.js programs: text, objects, sorting, hashing, until SIGTERM.
const crypto = require('crypto');
const zlib = require('zlib');

const rows = Array.from({ length: 300 }, (_, i) => ({ id: i, text: 'abc def '.repeat(10), value: i * 1.5 }));

function texts() {
  const text = JSON.stringify(rows);
  JSON.parse(text);
  return text.replace(/(\w+) (\w+)/g, '$2 $1');
}

function numbers() {
  let sum = 0;
  for (let i = 0; i < 200000; i++) sum = (sum * 31 + i) | 0;
  return rows.map((row) => (row.id * 7919 + sum) % 10007).sort((a, b) => a - b);
}

function bytesOf(text) {
  return crypto.createHash('sha256').update(text).digest('hex') + zlib.deflateSync(text).length;
}

let on = true;
process.on('SIGTERM', () => {
  on = false;
});

function loop() {
  bytesOf(texts());
  numbers();
  if (on) setImmediate(loop);
  else process.exit(17);
}

loop();
console.log('ready');
