/** A question that is asked before something is done that can't be undone. */
import { render } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

interface Question {
  title: string;
  text: string;
  /** What the button says that does it. */
  does: string;
}

/** Ask, and return whether the answer is yes. Escape is no. */
export function ask(question: Question): Promise<boolean> {
  const place = document.body.appendChild(document.createElement("div"));
  return new Promise((resolve) => {
    const answer = (yes: boolean): void => {
      render(null, place);
      place.remove();
      resolve(yes);
    };
    render(<Dialog {...question} answer={answer} />, place);
  });
}

function Dialog({ title, text, does, answer }: Question & { answer: (yes: boolean) => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  // At once: until it is modal, a key that is held down presses the button behind it again.
  useLayoutEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog
      ref={dialog}
      class="ask"
      aria-labelledby="ask-title"
      aria-describedby="ask-text"
      onCancel={(event) => {
        event.preventDefault();
        answer(false);
      }}
    >
      <h2 id="ask-title">{title}</h2>
      <p id="ask-text">{text}</p>
      <div class="row end">
        <button type="button" onClick={() => answer(false)} autofocus>
          Cancel
        </button>
        <button type="button" class="danger" onClick={() => answer(true)}>
          {does}
        </button>
      </div>
    </dialog>
  );
}
