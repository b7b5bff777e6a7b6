// Vectors of W lanes for every element type, on GCC's and clang's vector extensions. Nothing is included.
// W follows from the machine (AVX-512, AVX2, else 16 bytes) and from LANE_BYTES, the size of the elements that count.
#pragma once
typedef __INT64_TYPE__ i64; typedef __INT32_TYPE__ i32; typedef __INT16_TYPE__ i16; typedef __INT8_TYPE__ i8;
typedef __UINT64_TYPE__ u64; typedef __UINT32_TYPE__ u32; typedef __UINT16_TYPE__ u16; typedef __UINT8_TYPE__ u8;
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
#ifndef LANE_BYTES
#define LANE_BYTES 4
#endif
#if VECTOR_BYTES / LANE_BYTES < 4
#define W 4
#else
#define W (VECTOR_BYTES / LANE_BYTES)
#endif
#define AI static inline __attribute__((always_inline))
#define INLINE __attribute__((always_inline))
#define INF __builtin_inf()
#define NAN __builtin_nan("")

struct b8 { u8 bits; }; struct bf16 { u16 bits; }; struct f16 { u16 bits; }; struct e4m3 { u8 bits; }; struct e5m2 { u8 bits; };
template <class T> struct Vec { typedef T type __attribute__((vector_size(W * sizeof(T)))); typedef T raw __attribute__((vector_size(W * sizeof(T)), aligned(sizeof(T)), may_alias)); };
typedef Vec<float>::type vf; typedef Vec<double>::type vd; typedef Vec<i32>::type vi; typedef Vec<i64>::type vl; typedef Vec<u16>::type vh; typedef Vec<u8>::type vb;
#if LANE_BYTES == 8
typedef vl vm; typedef i64 mask;   // what a comparison gives: 0 or -1 in every lane
#else
typedef vi vm; typedef i32 mask;
#endif
template <class V> struct Lane { typedef V type; };
template <> struct Lane<vf> { typedef float type; }; template <> struct Lane<vd> { typedef double type; };
template <> struct Lane<vi> { typedef i32 type; }; template <> struct Lane<vl> { typedef i64 type; };
template <class V> using lane = typename Lane<V>::type;

// one number in every lane
AI vf bc(float x) { return x - (vf){}; }
AI vd bc(double x) { return x - (vd){}; }
AI vi bc(i32 x) { return x + (vi){}; }
AI vl bc(i64 x) { return x + (vl){}; }
AI vm bc(bool x) { return (mask)-(mask)x + (vm){}; }
template <class V> struct Bc { AI V of(lane<V> x) { return bc(x); } };
template <> struct Bc<float> { AI float of(float x) { return x; } }; template <> struct Bc<double> { AI double of(double x) { return x; } };
template <> struct Bc<i32> { AI i32 of(i32 x) { return x; } }; template <> struct Bc<i64> { AI i64 of(i64 x) { return x; } };
template <> struct Bc<bool> { AI bool of(bool x) { return x; } };
AI vi iota() { vi v; for (int i = 0; i < W; i++) v[i] = i; return v; }
AI vl iotal() { vl v; for (int i = 0; i < W; i++) v[i] = i; return v; }

// masks and choices
template <class M> AI vm mk(M m) { return __builtin_convertvector(m, vm); }
AI vm mk(vm m) { return m; }
AI bool mk(bool m) { return m; }
AI vf sel(vm c, vf a, vf b) { return __builtin_convertvector(c, vi) ? a : b; }
AI vd sel(vm c, vd a, vd b) { return __builtin_convertvector(c, vl) ? a : b; }
AI vi sel(vm c, vi a, vi b) { return __builtin_convertvector(c, vi) ? a : b; }
AI vl sel(vm c, vl a, vl b) { return __builtin_convertvector(c, vl) ? a : b; }
AI float sel(bool c, float a, float b) { return c ? a : b; }
AI double sel(bool c, double a, double b) { return c ? a : b; }
AI i32 sel(bool c, i32 a, i32 b) { return c ? a : b; }
AI i64 sel(bool c, i64 a, i64 b) { return c ? a : b; }
AI bool sel(bool c, bool a, bool b) { return c ? a : b; }
AI vm no(vm m) { return ~m; }
AI bool no(bool m) { return !m; }
AI bool any(vm m) {
#if defined(__AVX512F__) && !defined(__clang__) && LANE_BYTES == 4
  return __builtin_ia32_ptestmd512(m, m, (u16)-1) != 0;
#elif defined(__AVX__) && W * LANE_BYTES == 32
  typedef float eight __attribute__((vector_size(32))); return __builtin_ia32_movmskps256((eight)m) != 0;
#else
  mask r = 0; for (int i = 0; i < W; i++) r |= m[i]; return r != 0;
#endif
}
AI bool any(bool m) { return m; }

// conversions between element types; to an integer it truncates
template <class V> struct Cvt { template <class X> AI V of(X x) { return __builtin_convertvector(x, V); } };
AI vf as_f(vf x) { return x; }
AI vf as_f(vd x) { return __builtin_convertvector(x, vf); }
AI vf as_f(vi x) { return __builtin_convertvector(x, vf); }
AI vf as_f(vl x) { return __builtin_convertvector(x, vf); }
AI vd as_d(vf x) { return __builtin_convertvector(x, vd); }
AI vd as_d(vd x) { return x; }
AI vd as_d(vi x) { return __builtin_convertvector(x, vd); }
AI vd as_d(vl x) { return __builtin_convertvector(x, vd); }
AI vi as_i(vf x) { return __builtin_convertvector(x, vi); }
AI vi as_i(vd x) { vi v; for (int i = 0; i < W; i++) v[i] = (i32)x[i]; return v; }
AI vi as_i(vi x) { return x; }
AI vi as_i(vl x) { return __builtin_convertvector(x, vi); }
AI vl as_l(vf x) { vl v; for (int i = 0; i < W; i++) v[i] = (i64)x[i]; return v; }
AI vl as_l(vd x) { vl v; for (int i = 0; i < W; i++) v[i] = (i64)x[i]; return v; }
AI vl as_l(vi x) { return __builtin_convertvector(x, vl); }
AI vl as_l(vl x) { return x; }
AI vf from_m_f(vm m) { return as_f(-m); }
AI vd from_m_d(vm m) { return as_d(-m); }
AI vi from_m_i(vm m) { return as_i(-m); }
AI vl from_m_l(vm m) { return as_l(-m); }
AI float as_f(float x) { return x; } AI float as_f(double x) { return (float)x; } AI float as_f(i32 x) { return (float)x; } AI float as_f(i64 x) { return (float)x; }
AI double as_d(float x) { return x; } AI double as_d(double x) { return x; } AI double as_d(i32 x) { return x; } AI double as_d(i64 x) { return (double)x; }
AI i32 as_i(float x) { return (i32)x; } AI i32 as_i(double x) { return (i32)x; } AI i32 as_i(i32 x) { return x; } AI i32 as_i(i64 x) { return (i32)x; }
AI i64 as_l(float x) { return (i64)x; } AI i64 as_l(double x) { return (i64)x; } AI i64 as_l(i32 x) { return x; } AI i64 as_l(i64 x) { return x; }
AI float from_m_f(bool m) { return m; } AI double from_m_d(bool m) { return m; } AI i32 from_m_i(bool m) { return m; } AI i64 from_m_l(bool m) { return m; }
AI vi wrap_i8(vi x) { return (x << 24) >> 24; }
AI vi wrap_i16(vi x) { return (x << 16) >> 16; }
AI vi wrap_u8(vi x) { return x & 255; }
AI i32 wrap_i8(i32 x) { return (i8)x; } AI i32 wrap_i16(i32 x) { return (i16)x; } AI i32 wrap_u8(i32 x) { return (u8)x; }
template <class V> AI V divide(V a, V b) { V q; for (int i = 0; i < W; i++) { lane<V> d = b[i] ? b[i] : 1, r = a[i] % d; q[i] = a[i] / d - (r && (r < 0) != (d < 0)); } return q; }
template <class V> AI V modulo(V a, V b) { V q; for (int i = 0; i < W; i++) { lane<V> d = b[i] ? b[i] : 1, r = a[i] % d; q[i] = r && (r < 0) != (d < 0) ? r + d : r; } return q; }
AI i64 divide(i64 a, i64 b) { if (!b) b = 1; i64 r = a % b; return a / b - (r && (r < 0) != (b < 0)); }
AI i64 modulo(i64 a, i64 b) { if (!b) b = 1; i64 r = a % b; return r && (r < 0) != (b < 0) ? r + b : r; }
AI i32 divide(i32 a, i32 b) { return (i32)divide((i64)a, (i64)b); }
AI i32 modulo(i32 a, i32 b) { return (i32)modulo((i64)a, (i64)b); }
AI i64 imin(i64 a, i64 b) { return a < b ? a : b; }
AI i64 imax(i64 a, i64 b) { return a > b ? a : b; }
AI i64 cdiv(i64 a, i64 b) { return (a + b - 1) / b; }
AI i64 padded(i64 n) { return (n + W - 1) / W * W; }

#if W == 16
#define LANES 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
#elif W == 8
#define LANES 0, 1, 2, 3, 4, 5, 6, 7
#else
#define LANES 0, 1, 2, 3
#endif
// a butterfly of pairs transposes a block of W x W that is held in registers
template <int S, class V, int... I> AI void exchange(V &x, V &y) {
  V u = __builtin_shufflevector(x, y, ((I & S) ? W + I - S : I)...), v = __builtin_shufflevector(x, y, ((I & S) ? W + I : I + S)...);
  x = u; y = v;
}
template <int S, class V> AI void stage(V *a) { for (int i = 0; i < W; i++) if (!(i & S)) exchange<S, V, LANES>(a[i], a[i + S]); }
template <class V> AI void transpose(V *a) {
#if W == 16
  stage<8>(a);
#endif
#if W >= 8
  stage<4>(a);
#endif
  stage<2>(a); stage<1>(a);
}
