// Calls the commands of src/main.rs and shows their events.

const { Channel, invoke } = window.__TAURI__.core;
const element = id => document.getElementById(id);

function show(event) {
  element('progress').hidden = event.type !== 'progress';
  switch (event.type) {
    case 'progress':
      Object.assign(element('progress'), { value: event.done, max: Math.max(event.total, 1) });
      break;
    case 'text':
      element('answer').append(event.text);
      break;
    case 'not_in_notes':
      element('answer').textContent = event.message;
      break;
    case 'done':
      for (const { number, title, path, locator } of event.sources) {
        const item = document.createElement('li');
        Object.assign(item, { value: number, textContent: `${title} (${path} ${locator})` });
        element('sources').append(item);
      }
      break;
  }
}

async function call(command, options) {
  document.body.ariaBusy = 'true';
  element('answer').textContent = '';
  element('sources').replaceChildren();
  const told = new Channel();
  told.onmessage = show;
  try {
    await invoke(command, { ...options, told });
  } catch (error) {
    element('answer').textContent = error;
  } finally {
    document.body.ariaBusy = 'false';
    element('progress').hidden = true;
  }
}

for (const command of ['open', 'ask']) {
  element(command).addEventListener('submit', event => {
    event.preventDefault();
    void call(command, Object.fromEntries(new FormData(event.target)));
  });
}
element('stop').addEventListener('click', () => void invoke('stop').catch(() => {}));
