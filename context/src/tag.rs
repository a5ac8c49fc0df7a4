//! Tags: named values beside the span.

use std::marker::PhantomData;

use traceprof_abi::context::{TEXT_MAX, TagKind, TagRefused};

use crate::table;

/// A tag of this process. A name is registered once, best at start, and keeps its place; there are
/// ten of them. `V` is `u32` or [`Text`].
#[derive(Debug)]
pub struct Tag<V> {
    place: usize,
    value: PhantomData<fn(V)>,
}

impl<V> Clone for Tag<V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for Tag<V> {}

impl<V> Tag<V> {
    /// Its place among [`crate::Values::tags`].
    pub fn place(self) -> usize {
        self.place
    }

    /// Clears the value in the calling thread's context.
    pub fn clear(self) {
        table::here().set_tag(self.place, 0);
    }

    fn register(name: &str, kind: TagKind) -> Result<Self, TagRefused> {
        let table = table::table().ok_or(TagRefused::Full)?;
        Ok(Self { place: table.tags().register(name.as_bytes(), kind)?, value: PhantomData })
    }
}

impl Tag<u32> {
    /// The tag with this name, whose values are numbers.
    ///
    /// # Errors
    /// If the name is empty or longer than 56 bytes, or if it has values of the other kind already.
    /// [`TagRefused::Full`] if ten others are registered, if there is no room for the text of the
    /// name, or if there is no memory for a table.
    ///
    /// ```
    /// use traceprof_context::{Tag, TagRefused};
    ///
    /// let tenant = Tag::number("tenant")?;
    /// assert_eq!(Tag::number("tenant")?.place(), tenant.place());
    /// assert_eq!(Tag::text("tenant").unwrap_err(), TagRefused::OtherKind);
    /// # Ok::<(), TagRefused>(())
    /// ```
    pub fn number(name: &str) -> Result<Self, TagRefused> {
        Self::register(name, TagKind::Number)
    }

    /// Sets the calling thread's value, until it is set again or the context is cleared. 0 is as
    /// good as none.
    #[inline]
    pub fn set(self, value: u32) {
        table::here().set_tag(self.place, value);
    }
}

impl Tag<Text> {
    /// The tag with this name, whose values are texts.
    ///
    /// # Errors
    /// As [`Tag::number`].
    pub fn text(name: &str) -> Result<Self, TagRefused> {
        Self::register(name, TagKind::Text)
    }

    /// Sets the calling thread's value, until it is set again or the context is cleared.
    #[inline]
    pub fn set(self, value: Text) {
        table::here().set_tag(self.place, value.0);
    }

    /// As [`Self::set`], for a text that is looked up each time.
    pub fn set_text(self, value: &str) {
        self.set(text(value));
    }
}

/// A text as the value of a tag. The default is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Text(u32);

impl Text {
    /// Its number among [`crate::Values::tags`]; 0 for none.
    pub fn id(self) -> u32 {
        self.0
    }
}

/// Keeps a text once for the life of the process, cut after 255 bytes.
///
/// Returns no text ([`Text::default`]) if there is no room, and counts that
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
    // Not within a character.
    let end = (0..=TEXT_MAX.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    let text = end.and_then(|end| text.get(..end)).unwrap_or_default();
    Text(table::table().map_or(0, |table| table.texts.intern(text.as_bytes())))
}
