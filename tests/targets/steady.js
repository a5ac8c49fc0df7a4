// The main thread and a worker compute, sort and make garbage until SIGTERM. Each checks its
// results.
const { Worker, isMainThread, parentPort } = require('node:worker_threads');

let wrong = 0;
const fibonacci = (n) => (n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2));

function work() {
  if (fibonacci(16) !== 987) wrong++;
  const words = Array.from({ length: 2000 }, (_, i) => String((i * 7919) % 10007));
  if (words.sort()[0] !== '0') wrong++;
}

if (isMainThread) {
  const worker = new Worker(__filename);
  let early = 0;
  let waiting = true;
  const nap = () => {
    const start = process.hrtime.bigint();
    setTimeout(() => {
      if (process.hrtime.bigint() - start < 2000000n) early++;
      if (waiting) nap();
    }, 3);
  };
  const loop = () => {
    work();
    if (waiting) setImmediate(loop);
  };
  process.on('SIGTERM', () => {
    waiting = false;
    worker.postMessage('end');
  });
  worker.on('message', (ofWorker) => {
    if (ofWorker === 'ready') {
      nap();
      loop();
      console.log('ready');
      return;
    }
    process.stdout.write(`wrong ${wrong + ofWorker}\nearly ${early}\n`, () => process.exit(17));
  });
} else {
  let on = true;
  parentPort.on('message', () => {
    on = false;
  });
  const loop = () => {
    work();
    if (on) setImmediate(loop);
    else parentPort.postMessage(wrong);
  };
  parentPort.postMessage('ready');
  loop();
}
