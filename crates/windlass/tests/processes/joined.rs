//! A store that another has open is as good as one's own.
