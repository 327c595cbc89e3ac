// Everything of the library but the decoder, which has a header and a CMake target of its own.
#ifndef HEADLANE_HEADLANE_H_
#define HEADLANE_HEADLANE_H_

#include "headlane/attention.h"      // IWYU pragma: export
#include "headlane/dtype.h"          // IWYU pragma: export
#include "headlane/executor.h"       // IWYU pragma: export
#include "headlane/kv_cache.h"       // IWYU pragma: export
#include "headlane/kv_file.h"        // IWYU pragma: export
#include "headlane/kv_pages.h"       // IWYU pragma: export
#include "headlane/linear.h"         // IWYU pragma: export
#include "headlane/mask.h"           // IWYU pragma: export
#include "headlane/ops.h"            // IWYU pragma: export
#include "headlane/status.h"         // IWYU pragma: export
#include "headlane/target.h"         // IWYU pragma: export
#include "headlane/view.h"           // IWYU pragma: export
#include "headlane/weight_format.h"  // IWYU pragma: export

#endif  // HEADLANE_HEADLANE_H_
