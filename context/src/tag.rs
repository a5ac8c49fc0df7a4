//! Tags: named values in addition to the span.

use std::marker::PhantomData;

use traceprof_abi::context::{TEXT_MAX, TagKind, TagRefused};

use crate::table;

/// A tag of this process. There are at most ten. A name is registered once, best at startup, and
/// keeps its index. `V` is `u32` or [`Text`].
#[derive(Debug)]
pub struct Tag<V> {
    index: usize,
    value: PhantomData<fn(V)>,
}

impl<V> Clone for Tag<V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for Tag<V> {}

impl<V> Tag<V> {
    /// Returns the tag's index in [`crate::Values::tags`].
    pub fn index(self) -> usize {
        self.index
    }

    /// Clears the value in the calling thread's context.
    pub fn clear(self) {
        table::here().set_tag(self.index, 0);
    }

    fn register(name: &str, kind: TagKind) -> Result<Self, TagRefused> {
        let table = table::table().ok_or(TagRefused::Full)?;
        Ok(Self { index: table.tags().register(name.as_bytes(), kind)?, value: PhantomData })
    }
}

impl Tag<u32> {
    /// Returns the tag with this name, whose values are numbers.
    ///
    /// # Errors
    /// [`TagRefused`] if the name is empty or longer than 56 bytes, or if it already has values of
    /// the other kind. [`TagRefused::Full`] if ten other names are registered, if there is no room
    /// for the text of the name, or if there is no memory for a table.
    ///
    /// ```
    /// use traceprof_context::{Tag, TagRefused};
    ///
    /// let tenant = Tag::number("tenant")?;
    /// assert_eq!(Tag::number("tenant")?.index(), tenant.index());
    /// assert_eq!(Tag::text("tenant").unwrap_err(), TagRefused::OtherKind);
    /// # Ok::<(), TagRefused>(())
    /// ```
    pub fn number(name: &str) -> Result<Self, TagRefused> {
        Self::register(name, TagKind::Number)
    }

    /// Sets the calling thread's value, until it is set again or the context is cleared. 0 means no
    /// value.
    #[inline]
    pub fn set(self, value: u32) {
        table::here().set_tag(self.index, value);
    }
}

impl Tag<Text> {
    /// Returns the tag with this name, whose values are texts.
    ///
    /// # Errors
    /// Like [`Tag::number`].
    pub fn text(name: &str) -> Result<Self, TagRefused> {
        Self::register(name, TagKind::Text)
    }

    /// Sets the calling thread's value, until it is set again or the context is cleared.
    #[inline]
    pub fn set(self, value: Text) {
        table::here().set_tag(self.index, value.0);
    }

    /// Like [`Self::set`], but finds the text's id at each call.
    pub fn set_text(self, value: &str) {
        self.set(text(value));
    }
}

/// A text as the value of a tag. The default is no text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Text(u32);

impl Text {
    /// Returns the text's number in [`crate::Values::tags`], 0 for none.
    pub fn id(self) -> u32 {
        self.0
    }
}

/// Stores a text once for the life of the process, truncated to 255 bytes.
///
/// If there is no room, returns no text ([`Text::default`]) and counts the refusal
/// ([`crate::Statistics::texts_refused`]). Texts are for values that recur, such as routes.
///
/// ```
/// use traceprof_context::{Tag, text};
///
/// let route = Tag::text("route")?;
/// let checkout = text("/checkout");
/// assert_eq!(text("/checkout"), checkout);
/// route.set(checkout);
/// # traceprof_context::clear();
/// # Ok::<(), traceprof_context::TagRefused>(())
/// ```
pub fn text(text: &str) -> Text {
    // Truncate at a character boundary.
    let end = (0..=TEXT_MAX.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    let text = end.and_then(|end| text.get(..end)).unwrap_or_default();
    Text(table::table().map_or(0, |table| table.texts.intern(text.as_bytes())))
}
