// The list of runs and the curves of some of them, followed by server-sent events while the page is visible.
import { events } from "./api.js";
import { useEffect, useState } from "./html.js";
import { address } from "./router.js";

const RETRY_MS = 3000;

/**
 * {runs, curves, error}; curves by name. `chosen`: names of runs; if there are none, `first(runs)` chooses as soon as
 * the list is known.
 */
export function useRunEvents(chosen, first) {
  const [runs, setRuns] = useState(null);
  const [curves, setCurves] = useState({});
  const [error, setError] = useState(null);
  const names = chosen.length || !runs ? chosen : first(runs);
  useEffect(() => {
    const show = { runs: setRuns, curve: (curve) => setCurves((now) => merged(now, curve)), gone: () => {} };
    return followed(address("api/runs/events", { name: names }), show, setError);
  }, [names.join("\n")]);
  return { runs, curves, error };
}

function merged(curves, { append, ...news }) {
  const before = append ? curves[news.name] : undefined;
  if (!before) return { ...curves, [news.name]: news };
  const joined = { train: [...before.train, ...news.train], valid: [...before.valid, ...news.valid] };
  return { ...curves, [news.name]: { ...news, ...joined } };
}

/** Follow events until the returned function is called; hidden pages do not hold a connection. */
function followed(path, show, setError) {
  let stop = null;
  const start = async () => {
    const mine = new AbortController();
    stop = mine;
    while (!mine.signal.aborted) {
      try {
        for await (const { event, data } of events(path, { signal: mine.signal })) {
          setError(null);
          show[event]?.(JSON.parse(data));
        }
      } catch (error) {
        if (mine.signal.aborted) return;
        setError(error);
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  };
  const changed = () => (document.hidden ? stop?.abort() : start());
  document.addEventListener("visibilitychange", changed);
  if (!document.hidden) start();
  return () => {
    document.removeEventListener("visibilitychange", changed);
    stop?.abort();
  };
}
