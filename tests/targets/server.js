// A server and a process that asks it without pause, until SIGTERM. Each request makes a function
// of its own, calls it and drops it.
'use strict';
const http = require('node:http');
const { fork } = require('node:child_process');

if (process.argv[2] === 'client') {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 4 });
  const ask = () => {
    const request = http.get({ port: process.argv[3], path: '/a?b=c', agent }, (response) => {
      response.resume();
      response.on('end', ask);
    });
    request.on('error', () => process.exit(0));
  };
  for (let i = 0; i < 4; i++) ask();
  process.on('disconnect', () => process.exit(0));
  return;
}

function renderRow(row) {
  let s = row;
  for (let i = 0; i < 200; i++) s = (s * 31 + i) | 0;
  return `<td>${s}</td>`;
}
function renderRows(rows) {
  return rows.map(renderRow).join('');
}
function makeTemplate(number) {
  // Its code has a name of its own: no other function may have its samples.
  const body = `let s = 0; for (let i = 0; i < 4000; i++) s = (s * ${number} + i) | 0; return s;`;
  return new Function(`return function template_${number}() { ${body} }`)();
}
let requests = 0;
function answer(request, response) {
  const template = makeTemplate(requests++ % 1000);
  const rows = JSON.parse('[1,2,3,4,5,6,7,8]');
  response.end(`${template()} ${renderRows(rows)}`);
}

const server = http.createServer(answer);
server.listen(0, '127.0.0.1', () => {
  const client = fork(__filename, ['client', String(server.address().port)]);
  process.on('SIGTERM', () => {
    client.disconnect();
    process.stdout.write(`requests ${requests}\n`, () => process.exit(17));
  });
  console.log('ready');
});
