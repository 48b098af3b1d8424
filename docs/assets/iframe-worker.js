// The search runs in a worker, and browsers start none for pages opened from disk. There, a hidden frame takes its place.
// The theme's search looks for the name IFrameWorker, and for a script with its address in the frame.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.answer(data);
      this.inside.importScripts = (...addresses) =>
        addresses.reduce((before, one) => before.then(() => this.load(one)), Promise.resolve());
      this.ready = this.load(address);
    }

    load(address) {
      const script = this.inside.document.createElement("script");
      script.src = address;
      const loaded = new Promise((done) => { script.onload = done; });
      this.inside.document.body.append(script);
      return loaded;
    }

    answer(data) {
      const event = new MessageEvent("message", { data });
      this.onmessage?.(event);
      this.dispatchEvent(event);
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.inside.frameElement.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
