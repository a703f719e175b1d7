//! Words that are too common to identify the subject of a request.

/// Frequent English function words, the auxiliaries of questions, and the parts of words with an apostrophe; lower
/// case.
///
/// BM25 gives almost no weight to a word that is in every passage. With few notes, it cannot identify these words.
/// The list is short: removing a meaningful word costs more than keeping a meaningless one.
pub(crate) const STOP_WORDS: [&str; 57] = [
    "a", "about", "an", "and", "are", "as", "at", "be", "by", "can", "d", "did", "do", "does", "for", "from",
    "had", "has", "have", "how", "i", "in", "is", "it", "its", "ll", "me", "my", "of", "on", "or", "our",
    "please", "s", "she", "should", "t", "that", "the", "their", "they", "this", "to", "was", "we", "were",
    "what", "when", "where", "which", "who", "will", "with", "would", "you", "your", "he",
];
