//! Values that many simulated processes have alike, each kept once. It knows that they all are in one process, and not
//! what the values are.

use std::any::Any;
use std::sync::{Arc, Weak};

use crate::sync::Mutex;

/// The values in use. It keeps none of them.
#[derive(Default)]
pub struct Once(Mutex<Vec<Weak<dyn Any + Send + Sync>>>);

impl Once {
    /// The value that is equal to this one, if one is in use; else this one, for others.
    pub(crate) fn get<T: Any + PartialEq + Send + Sync>(&self, value: Arc<T>) -> Arc<T> {
        // They are compared, and the last user of one may drop it here, without the lock.
        let known: Vec<Arc<dyn Any + Send + Sync>> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        if let Some(equal) = known.into_iter().filter_map(|known| known.downcast().ok()).find(|known| *known == value) {
            return equal;
        }
        let new: Arc<dyn Any + Send + Sync> = value.clone();
        let mut values = self.0.lock();
        values.retain(|known| known.strong_count() > 0);
        values.push(Arc::downgrade(&new));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_kept_once_and_only_while_somebody_has_them() {
        let once = Once::default();
        let first = once.get(Arc::new("map 1".to_owned()));
        assert!(Arc::ptr_eq(&first, &once.get(Arc::new("map 1".to_owned()))));
        let other = once.get(Arc::new("map 2".to_owned()));
        assert_eq!((first.as_str(), other.as_str()), ("map 1", "map 2"));
        // Another type with equal contents is another value.
        assert_eq!(*once.get(Arc::new(1_u8)), 1);
        drop((first, other));
        once.get(Arc::new(2_u8));
        assert_eq!(once.0.lock().len(), 1, "those that nobody has are forgotten");
    }
}
