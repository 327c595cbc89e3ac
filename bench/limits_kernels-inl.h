// The loops themselves, on vectors of kVectorBytes. Included by the limits_<instruction set>.cc files, each of which
// defines, before, inside of `namespace headlane::bench { namespace {`:
//   Vector        kVectorBytes / 4 floats, of the compiler's vector extension
//   MultiplyAdd   Vector x Vector x Vector: a * b + c
//
// The multiply-adds stay in registers: kChains of them that depend only on themselves hide the latency of the units,
// and with a = a * x + y, x = 0.999 and y = 0.001 all values stay near 1, where no unit is slower than elsewhere.
#ifndef HEADLANE_BENCH_LIMITS_KERNELS_INL_H_
#define HEADLANE_BENCH_LIMITS_KERNELS_INL_H_

constexpr int64_t kLineFloats = 16;  // a cache line
constexpr int64_t kLanes = kVectorBytes / 4;
constexpr int kVectorsPerLine = static_cast<int>(64 / kVectorBytes);

template <int kChains>
float MultiplyAddLoop(int64_t iterations) {
  Vector a[kChains];
  const Vector x = Vector{} + 0.999f;
  const Vector y = Vector{} + 0.001f;
  for (int i = 0; i < kChains; ++i) a[i] = Vector{} + (0.5f + static_cast<float>(i));
  for (int64_t iteration = 0; iteration < iterations; ++iteration) {
#pragma GCC unroll 32
    for (int i = 0; i < kChains; ++i) a[i] = MultiplyAdd(a[i], x, y);
  }
  for (int i = 1; i < kChains; ++i) a[0] += a[i];
  return a[0][0];
}

// Locality: what __builtin_prefetch takes, 3 = into L1, 2 = into L2, 0 = read once.
template <int kStreams, int kLines, int kAhead, int kLocality>
float Read(const float* data, int64_t stride, int64_t part) {
  // More chains than an addition has cycles of latency; more would not fit AVX2's registers.
  constexpr int kSums = 8;
  Vector sum[kSums] = {};
  for (int64_t i = 0; i < part; i += kLines * kLineFloats) {
#pragma GCC unroll 8
    for (int s = 0; s < kStreams; ++s) {
      const float* line = data + s * stride + i;
#pragma GCC unroll 8
      for (int l = 0; l < kLines; ++l) {
        if constexpr (kAhead != 0) __builtin_prefetch(line + l * kLineFloats + kAhead / 4, 0, kLocality);
#pragma GCC unroll 4
        for (int v = 0; v < kVectorsPerLine; ++v) {
          sum[((s * kLines + l) * kVectorsPerLine + v) % kSums] +=
              *reinterpret_cast<const Vector*>(line + l * kLineFloats + v * kLanes);
        }
      }
    }
  }
  for (int i = 1; i < kSums; ++i) sum[0] += sum[i];
  return sum[0][0];
}

template <int kStreams, int kLines>
struct Reads {
  static constexpr ReadKernel kNone{kStreams, kLines* kLineFloats, 0, "", Read<kStreams, kLines, 0, 0>};
  template <int kAhead>
  static constexpr ReadKernel kL1{kStreams, kLines* kLineFloats, kAhead, "L1", Read<kStreams, kLines, kAhead, 3>};
  template <int kAhead>
  static constexpr ReadKernel kL2{kStreams, kLines* kLineFloats, kAhead, "L2", Read<kStreams, kLines, kAhead, 2>};
  template <int kAhead>
  static constexpr ReadKernel kOnce{kStreams, kLines* kLineFloats, kAhead, "once", Read<kStreams, kLines, kAhead, 0>};
};

constexpr ReadKernel kReads[] = {
    Reads<1, 4>::kNone,     Reads<1, 4>::kL1<512>,    Reads<1, 4>::kL1<1024>, Reads<1, 4>::kL2<2048>,
    Reads<1, 4>::kL2<4096>, Reads<1, 4>::kOnce<2048>, Reads<2, 2>::kNone,     Reads<2, 2>::kL1<512>,
    Reads<2, 2>::kL1<1024>, Reads<2, 2>::kL2<2048>,   Reads<2, 2>::kL2<4096>, Reads<2, 2>::kOnce<2048>,
    Reads<4, 1>::kNone,     Reads<4, 1>::kL1<512>,    Reads<4, 1>::kL1<1024>, Reads<4, 1>::kL2<2048>,
    Reads<4, 1>::kL2<4096>, Reads<4, 1>::kOnce<2048>, Reads<8, 1>::kNone,     Reads<8, 1>::kL1<512>,
    Reads<8, 1>::kL1<1024>, Reads<8, 1>::kL2<2048>,   Reads<8, 1>::kL2<4096>, Reads<8, 1>::kOnce<1024>,
};
constexpr int kNumReads = sizeof(kReads) / sizeof(kReads[0]);

#endif  // HEADLANE_BENCH_LIMITS_KERNELS_INL_H_
