// Functions of every lane. exp, log and tanh are within 2 units in the last place; infinities, NaN and subnormal numbers are kept.
#pragma once
#include "numbers.h"
extern "C" {
float expm1f(float) noexcept; float log2f(float) noexcept; float log1pf(float) noexcept; float sinf(float) noexcept; float cosf(float) noexcept;
float erff(float) noexcept; float powf(float, float) noexcept; float exp2f(float) noexcept; float fmodf(float, float) noexcept;
double expm1(double) noexcept; double log2(double) noexcept; double log1p(double) noexcept; double sin(double) noexcept; double cos(double) noexcept;
double erf(double) noexcept; double pow(double, double) noexcept; double exp2(double) noexcept; double fmod(double, double) noexcept;
}
#define LANEWISE(name, of_float, of_double)                                                                        \
  AI float name(float x) { return of_float(x); }                                                                   \
  AI double name(double x) { return of_double(x); }                                                                \
  AI vf name(vf x) { vf v; for (int i = 0; i < W; i++) v[i] = of_float(x[i]); return v; }                          \
  AI vd name(vd x) { vd v; for (int i = 0; i < W; i++) v[i] = of_double(x[i]); return v; }
LANEWISE(x_expm1, expm1f, expm1) LANEWISE(x_log2, log2f, log2) LANEWISE(x_log1p, log1pf, log1p) LANEWISE(x_sin, sinf, sin)
LANEWISE(x_cos, cosf, cos) LANEWISE(x_erf, erff, erf) LANEWISE(x_exp2, exp2f, exp2)
LANEWISE(x_floor, __builtin_floorf, __builtin_floor) LANEWISE(x_ceil, __builtin_ceilf, __builtin_ceil)
LANEWISE(x_trunc, __builtin_truncf, __builtin_trunc) LANEWISE(x_round, __builtin_rintf, __builtin_rint)
LANEWISE(x_sqrt_each, __builtin_sqrtf, __builtin_sqrt) LANEWISE(x_abs_each, __builtin_fabsf, __builtin_fabs)
#if defined(__AVX512F__) && W == 16 && !defined(__clang__)
AI vf x_sqrt(vf x) { return __builtin_ia32_sqrtps512_mask(x, (vf){}, (u16)-1, 4); }
#elif defined(__AVX__) && W == 8 && !defined(__clang__)
AI vf x_sqrt(vf x) { return __builtin_ia32_sqrtps256(x); }
#else
AI vf x_sqrt(vf x) { return x_sqrt_each(x); }
#endif
AI vd x_sqrt(vd x) { return x_sqrt_each(x); }
AI float x_sqrt(float x) { return __builtin_sqrtf(x); }
AI double x_sqrt(double x) { return __builtin_sqrt(x); }
template <class V> AI V x_rsqrt(V x) { return Bc<V>::of(1) / x_sqrt(x); }

AI vf x_abs(vf x) { return (vf)((vi)x & 0x7fffffff); }
AI vd x_abs(vd x) { return (vd)((vl)x & 0x7fffffffffffffffLL); }
AI vi x_abs(vi x) { return sel(mk(x < 0), -x, x); }
AI vl x_abs(vl x) { return sel(mk(x < 0), -x, x); }
AI float x_abs(float x) { return __builtin_fabsf(x); }
AI double x_abs(double x) { return __builtin_fabs(x); }
AI double within_float(double x) { return x_abs(x) <= 0x1p-150 ? 0 : x; }   // 0 where a float would be
AI i32 x_abs(i32 x) { return x < 0 ? -x : x; }
AI i64 x_abs(i64 x) { return x < 0 ? -x : x; }
template <class V> AI V x_sign(V x) { V one = Bc<V>::of(1), zero = Bc<V>::of(0); return sel(mk(x > zero), one, zero) - sel(mk(x < zero), one, zero); }
#define POWER(T, S, f) AI T x_pow(T a, T b) { T v; for (int i = 0; i < W; i++) v[i] = f(a[i], b[i]); return v; } AI S x_pow(S a, S b) { return f(a, b); }
POWER(vf, float, powf) POWER(vd, double, pow)
template <class V> AI V int_pow(V a, V b) { V v; for (int i = 0; i < W; i++) { lane<V> r = 1, x = a[i]; for (lane<V> e = b[i]; e > 0; e >>= 1, x *= x) if (e & 1) r *= x; v[i] = r; } return v; }
AI vi x_pow(vi a, vi b) { return int_pow(a, b); }
AI vl x_pow(vl a, vl b) { return int_pow(a, b); }
AI i64 x_pow(i64 a, i64 b) { return int_pow(bc(a), bc(b))[0]; }
AI i32 x_pow(i32 a, i32 b) { return int_pow(bc(a), bc(b))[0]; }
#define FLOORED(T, S, f, fl)                                                                                        \
  AI S x_remainder(S a, S b) { S r = f(a, b); return r != 0 && (r < 0) != (b < 0) ? r + b : r; }                    \
  AI S x_floordiv(S a, S b) { if (b == 0) return a / b; S r = f(a, b), q = (a - r) / b; if (r != 0 && (b < 0) != (r < 0)) q -= 1; S g = fl(q); return q - g > (S)0.5 ? g + 1 : g; } \
  AI T x_remainder(T a, T b) { T v; for (int i = 0; i < W; i++) v[i] = x_remainder(a[i], b[i]); return v; }         \
  AI T x_floordiv(T a, T b) { T v; for (int i = 0; i < W; i++) v[i] = x_floordiv(a[i], b[i]); return v; }
FLOORED(vf, float, fmodf, __builtin_floorf) FLOORED(vd, double, fmod, __builtin_floor)
template <class V> AI V x_remainder(V a, V b) { return modulo(a, b); }
template <class V> AI V x_floordiv(V a, V b) { return divide(a, b); }

// the larger and the smaller of two numbers; NaN wins, as in PyTorch
#if defined(__AVX512F__) && W == 16 && !defined(__clang__)
AI vf larger(vf a, vf b) { return sel(mk(a != a), a, (vf)__builtin_ia32_maxps512_mask(a, b, (vf){}, (u16)-1, 4)); }
AI vf smaller(vf a, vf b) { return sel(mk(a != a), a, (vf)__builtin_ia32_minps512_mask(a, b, (vf){}, (u16)-1, 4)); }
#elif defined(__AVX__) && W == 8 && !defined(__clang__)
AI vf larger(vf a, vf b) { return sel(mk(a != a), a, (vf)__builtin_ia32_maxps256(a, b)); }
AI vf smaller(vf a, vf b) { return sel(mk(a != a), a, (vf)__builtin_ia32_minps256(a, b)); }
#else
AI vf larger(vf a, vf b) { return sel(mk(a != a) | mk(a > b), a, b); }
AI vf smaller(vf a, vf b) { return sel(mk(a != a) | mk(a < b), a, b); }
#endif
template <class V> AI V larger(V a, V b) { return sel(mk(a != a) | mk(a > b), a, b); }
template <class V> AI V smaller(V a, V b) { return sel(mk(a != a) | mk(a < b), a, b); }
AI vm larger_m(vm a, vm b) { return a | b; }
AI vm smaller_m(vm a, vm b) { return a & b; }
AI bool larger_m(bool a, bool b) { return a | b; }
AI bool smaller_m(bool a, bool b) { return a & b; }
template <class V> AI V least(V a, V b) { return a < b ? a : b; }      // b where either is NaN
template <class V> AI V greatest(V a, V b) { return a > b ? a : b; }
#if defined(__AVX512F__) && W == 16 && !defined(__clang__)
AI vf least(vf a, vf b) { return __builtin_ia32_minps512_mask(a, b, (vf){}, (u16)-1, 4); }
AI vf greatest(vf a, vf b) { return __builtin_ia32_maxps512_mask(a, b, (vf){}, (u16)-1, 4); }
#elif defined(__AVX__) && W == 8 && !defined(__clang__)
AI vf least(vf a, vf b) { return __builtin_ia32_minps256(a, b); }
AI vf greatest(vf a, vf b) { return __builtin_ia32_maxps256(a, b); }
#endif

// e^x: x = n ln2 + r, a polynomial in r, and 2^n in two steps, so that the result may overflow or be subnormal
AI vf x_exp(vf x) {
  x = least(bc(89.f), greatest(bc(-104.f), x));
  vf t = x * 1.44269504f + 12582912.f, n = t - 12582912.f;
  vf r = x - n * 0.693145752f; r = r - n * 1.42860677e-6f;
  vf p = r * 1.9875691500e-4f + 1.3981999507e-3f; p = p * r + 8.3334519073e-3f; p = p * r + 4.1665795894e-2f; p = p * r + 1.6666665459e-1f; p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.f;
#if defined(__AVX512F__) && W == 16 && !defined(__clang__)
  return __builtin_ia32_scalefps512_mask(p, n, (vf){}, (u16)-1, 4);
#else
  vi k = (vi)t - 0x4b400000, h = k >> 1;
  return p * (vf)((h + 127) << 23) * (vf)((k - h + 127) << 23);  // two factors: NaN stay what they are
#endif
}
AI vd x_exp(vd x) {
  x = least(bc(710.0), greatest(bc(-746.0), x));
  vd t = x * 1.4426950408889634 + 6755399441055744.0, n = t - 6755399441055744.0;
  vd r = x - n * 6.93145751953125e-1; r = r - n * 1.42860682030941723212e-6;
  vd s = r * r, p = r * ((s * 1.26177193074810590878e-4 + 3.02994407707441961300e-2) * s + 9.99999999999999999910e-1);
  vd q = ((s * 3.00198505138664455042e-6 + 2.52448340349684104192e-3) * s + 2.27265548208155028766e-1) * s + 2.0;
  p = 1.0 + 2.0 * (p / (q - p));
  vl k = (vl)t - 0x4338000000000000LL, h = k >> 1;
  return p * (vd)((h + 1023) << 52) * (vd)((k - h + 1023) << 52);
}
AI vf x_log(vf x) {
  vm tiny = mk(x < 1.17549435e-38f); vf y = sel(tiny, x * 8388608.f, x);
  vi b = (vi)y, k = ((b - 0x3f3504f3) >> 23);
  vf e = as_f(k) - sel(tiny, bc(23.f), (vf){}), m = (vf)(b - (k << 23)) - 1.f, z = m * m;
  vf p = m * 7.0376836292e-2f - 1.1514610310e-1f; p = p * m + 1.1676998740e-1f; p = p * m - 1.2420140846e-1f; p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f; p = p * m + 2.0000714765e-1f; p = p * m - 2.4999993993e-1f; p = p * m + 3.3333331174e-1f;
  p = p * m * z - e * 2.12194440e-4f; p = p - 0.5f * z; vf r = m + p + e * 0.693359375f;
  r = sel(mk(x == 0.f), bc(-__builtin_inff()), r); r = sel(mk(x < 0.f), bc(__builtin_nanf("")), r);
  return sel(mk(x < __builtin_inff()), r, x);   // inf and NaN
}
AI vd x_log(vd x) {
  vm tiny = mk(x < 2.2250738585072014e-308); vd y = sel(tiny, x * 4503599627370496.0, x);
  vl b = (vl)y, k = (b - 0x3fe6a09e667f3bcdLL) >> 52;
  vd e = as_d(k) - sel(tiny, bc(52.0), (vd){}), m = (vd)(b - (k << 52)) - 1.0, z = m * m;
  vd p = m * 1.01875663804580931796e-4 + 4.97494994976747001425e-1; p = p * m + 4.70579119878881725854; p = p * m + 1.44989225341610930846e1;
  p = p * m + 1.79368678507819816313e1; p = p * m + 7.70838733755885391666;
  vd q = m + 1.12873587189167450590e1; q = q * m + 4.52279145837532221105e1; q = q * m + 8.29875266912776603211e1; q = q * m + 7.11544750618563894466e1; q = q * m + 2.31251620126765340583e1;
  vd r = m * (z * p / q) - e * 2.121944400546905827679e-4; r = r - 0.5 * z; r = m + r + e * 0.693359375;
  r = sel(mk(x == 0.0), bc(-INF), r); r = sel(mk(x < 0.0), bc(NAN), r);
  return sel(mk(x < INF), r, x);
}
// e^x for |x| <= 80, where 2^n is a normal number
AI vf exp_near(vf x) {
  vf t = x * 1.44269504f + 12582912.f, n = t - 12582912.f;
  vf r = x - n * 0.693145752f; r = r - n * 1.42860677e-6f;
  vf p = r * 1.9875691500e-4f + 1.3981999507e-3f; p = p * r + 8.3334519073e-3f; p = p * r + 4.1665795894e-2f; p = p * r + 1.6666665459e-1f; p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.f;
  return (vf)((vi)p + ((vi)t << 23));
}
AI vf x_tanh(vf x) {
  vf a = least(bc(20.f), x_abs(x)), z = x * x;
  vf p = z * -5.70498872745e-3f + 2.06390887954e-2f; p = p * z - 5.37397155531e-2f; p = p * z + 1.33314422036e-1f; p = p * z - 3.33332819422e-1f;
  vf far = 1.f - 2.f / (exp_near(a + a) + 1.f);
  vf r = sel(mk(a < 0.625f), x + p * z * x, (vf)((vi)far | ((vi)x & (i32)0x80000000)));
  return sel(mk(x != x), x, r);
}
AI vd x_tanh(vd x) {
  vd a = x_abs(x), z = x * x;
  vd p = (z * -9.64399179425052238628e-1 - 9.92877231001918586564e1) * z - 1.61468768441708447952e3;
  vd q = ((z + 1.12811678491632931402e2) * z + 2.23548839060100448583e3) * z + 4.84406305325125486048e3;
  vd far = 1.0 - 2.0 / (x_exp(a + a) + 1.0);
  return sel(mk(a < 0.625), x + x * z * (p / q), (vd)((vl)far | ((vl)x & (i64)0x8000000000000000LL)));
}
template <class V> AI V x_sigmoid(V x) { return Bc<V>::of(1) / (Bc<V>::of(1) + x_exp(-x)); }
AI float x_exp(float x) { return x_exp(bc(x))[0]; }
AI double x_exp(double x) { return x_exp(bc(x))[0]; }
AI float x_log(float x) { return x_log(bc(x))[0]; }
AI double x_log(double x) { return x_log(bc(x))[0]; }
AI float x_tanh(float x) { return x_tanh(bc(x))[0]; }
AI double x_tanh(double x) { return x_tanh(bc(x))[0]; }
template <class V> AI V logaddexp(V a, V b) {
  V m = larger(a, b), d = x_abs(a - b);
  return sel(mk(x_abs(m) == Bc<V>::of((lane<V>)INF)) | mk(m != m), m, m + x_log1p(x_exp(-d)));
}
