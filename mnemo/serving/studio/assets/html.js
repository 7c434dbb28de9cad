// Preact with htm: `html` is a template tag; every value in it is text or an attribute, never HTML.
import htm from "htm";
import { createContext, h, render } from "preact";
import { useCallback, useContext, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

export const html = htm.bind(h);
export { createContext, render, useCallback, useContext, useEffect, useLayoutEffect, useMemo, useRef, useState };
