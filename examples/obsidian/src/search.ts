// A search, and its hits as they are shown.

import type { Hit, Notes } from '@refrain-rs/node';

/** A part of a snippet. */
export interface Part {
  text: string;
  isMatch: boolean;
}

/** The hits of a search; none before there is an index. */
export async function search(index: Pick<Notes, 'search'>, text: string, limit = 20): Promise<Hit[]> {
  if (text.trim() === '') {
    return [];
  }
  try {
    return await index.search({ text: text.toWellFormed(), limit });
  } catch (error) {
    if ((error as { kind?: unknown }).kind === 'not_found') {
      return [];
    }
    throw error;
  }
}

/** The snippet of a hit, with the words that match. */
export function parts({ snippet, matched }: Pick<Hit, 'snippet' | 'matched'>): Part[] {
  const all: Part[] = [];
  let at = 0;
  for (const { start, end } of [...matched].sort((a, b) => a.start - b.start)) {
    if (start < at) {
      continue;
    }
    all.push({ text: snippet.slice(at, start), isMatch: false }, { text: snippet.slice(start, end), isMatch: true });
    at = end;
  }
  all.push({ text: snippet.slice(at), isMatch: false });
  return all.filter(part => part.text !== '');
}
