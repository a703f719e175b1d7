//! Words too common to say what a request is about.

/// Frequent English function words, the auxiliaries of questions, and what an apostrophe leaves of a word; lower case.
///
/// BM25 already gives a word in every passage almost no weight; in a folder of few notes it cannot know yet which words
/// those are. Kept short: leaving out a word that meant something loses more than keeping one that does not.
pub(crate) const STOP_WORDS: [&str; 57] = [
    "a", "about", "an", "and", "are", "as", "at", "be", "by", "can", "d", "did", "do", "does", "for", "from",
    "had", "has", "have", "how", "i", "in", "is", "it", "its", "ll", "me", "my", "of", "on", "or", "our",
    "please", "s", "she", "should", "t", "that", "the", "their", "they", "this", "to", "was", "we", "were",
    "what", "when", "where", "which", "who", "will", "with", "would", "you", "your", "he",
];
